"""How much noise in its weights a model bears: the scale of the warning of `fit`.

    python benchmarks/noise_in_weights.py

Handwritten digits (scikit-learn), epsilon = 3, delta = 1e-4, 10 epochs of batches of 48.
Learning rates are chosen so that the noise in a weight, at the end of the run, is a given
multiple of 1 / sqrt(fan-in), the scale on which weights work. Prints the accuracy on
held-out digits; chance is 0.1.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import math
import warnings

import keras
import numpy as np
import rich.console
import rich.table
import sklearn.datasets

import tf_bandmf
import tf_bandmf.keras

_TRAINING, _BATCH_SIZE, _EPOCHS = 1440, 48, 10
_NOISES = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_HIDDEN = {"linear": (), "128": (128,), "256, 256": (256, 256)}


def accuracy(mechanism: str, hidden: tuple[int, ...], noise: float) -> float:
    """On held-out digits."""
    digits = sklearn.datasets.load_digits()
    order = np.random.RandomState(0).permutation(len(digits.target))
    x = digits.data[order].astype("float32") / 16
    y = digits.target[order]
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(width, "relu") for width in hidden]
    model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(10)])
    plan = tf_bandmf.plan(
        mechanism,
        epsilon=3,
        delta=1e-4,
        num_examples=_TRAINING,
        batch_size=_BATCH_SIZE,
        epochs=_EPOCHS,
    )
    fan_in = sum((64, *hidden))
    rate = noise * _BATCH_SIZE / (plan.rmse() * math.sqrt(fan_in))
    tf_bandmf.keras.make_private(model, self_check=False)
    optimizer = tf_bandmf.keras.PrivateOptimizer(
        keras.optimizers.SGD(rate), plan, additional_run=True
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    batches = plan.batches(x[:_TRAINING], y[:_TRAINING])
    model.fit(batches, epochs=_EPOCHS, verbose=0)
    return model.evaluate(x[_TRAINING:], y[_TRAINING:], verbose=0)[1]


def main() -> None:
    """Prints a table."""
    warnings.simplefilter("ignore")
    table = rich.table.Table(
        title="accuracy, by noise in a weight / (1 / sqrt(fan-in))"
    )
    for heading in ("mechanism", "hidden", *(f"{noise:g}" for noise in _NOISES)):
        table.add_column(heading)
    for mechanism in ("identity", "bisr:8"):
        for name, hidden in _HIDDEN.items():
            found = [f"{accuracy(mechanism, hidden, noise):.2f}" for noise in _NOISES]
            table.add_row(mechanism, name, *found)
    rich.console.Console(width=80).print(table)


if __name__ == "__main__":
    main()
