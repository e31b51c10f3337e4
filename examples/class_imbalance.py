"""Shows how class weights and thresholds affect a rare class in private training.

The data are generated customers, 15 % of whom leave. For each training method, the
program prints three metrics on held-out customers: the mean predicted probability, the
balanced accuracy at the method's threshold, and the area under the ROC curve. It prints
the mean and standard error of each metric over several seeds.

    python examples/class_imbalance.py
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import click
import keras
import numpy as np
import rich.console
import rich.table
import sklearn.metrics

import tf_bandmf
import tf_bandmf.keras

_TRAINING, _HELD_OUT, _FEATURES = 8_000, 4_000, 20
_EPSILON, _BATCH_SIZE, _EPOCHS = 2.0, 400, 20
_RARE = 0.15


def customers(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Generates features, [m, 20] float32, and labels (1 for leaving), [m] int32."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(_TRAINING + _HELD_OUT, _FEATURES))
    score = x[:, :4] @ [1.0, -0.8, 0.6, 0.4] + 0.5 * x[:, 4] * x[:, 5]
    score += rng.logistic(size=len(x))
    y = score > np.quantile(score, 1 - _RARE)
    return x.astype(np.float32), y.astype(np.int32)


def trained(
    x: np.ndarray,
    y: np.ndarray,
    seed: int,
    *,
    class_weight: dict[int, float] | None = None,
    is_private: bool = True,
) -> keras.Model:
    """Trains a small network, with or without privacy."""
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((_FEATURES,)),
            keras.layers.Dense(16, "relu"),
            keras.layers.Dense(1, "sigmoid"),
        ]
    )
    loss = "binary_crossentropy"
    if not is_private:
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss)
        model.fit(
            x,
            y,
            batch_size=_BATCH_SIZE,
            epochs=_EPOCHS,
            class_weight=class_weight,
            verbose=0,
        )
        return model
    plan = tf_bandmf.plan(
        "bisr:8",
        epsilon=_EPSILON,
        delta=1e-5,
        num_examples=len(x),
        batch_size=_BATCH_SIZE,
        epochs=_EPOCHS,
        workload="sgd:momentum=0.9",
    )
    tf_bandmf.keras.make_private(model)
    inner = keras.optimizers.SGD(**plan.optimizer_arguments(model.count_params()))
    # Each training method is a separate run. If several models were released, the privacy
    # losses of their runs would add up, and `tf_bandmf.compose` would give the guarantee.
    private = tf_bandmf.keras.PrivateOptimizer(inner, plan, additional_run=True)
    model.compile(private, loss)
    model.fit(plan.batches(x, y), epochs=_EPOCHS, class_weight=class_weight, verbose=0)
    return model


def measured(y: np.ndarray, p: np.ndarray, threshold: float) -> list[float]:
    """Computes three metrics of predicted probabilities.

    Args:
      y: the labels, [m].
      p: the predicted probabilities of label 1, [m].
      threshold: label 1 is predicted where `p` exceeds this threshold.

    Returns:
      The mean probability, the balanced accuracy, and the area under the ROC curve.
    """
    return [
        float(p.mean()),
        float(sklearn.metrics.balanced_accuracy_score(y, p > threshold)),
        float(sklearn.metrics.roc_auc_score(y, p)),
    ]


WAYS = {
    "private, no weights": ({}, 0.5),
    "private, threshold 0.15": ({}, _RARE),
    "private, weights 1 : 5.7": ({"class_weight": {0: 1.0, 1: 5.7}}, 0.5),
    "plain Keras, no weights": ({"is_private": False}, 0.5),
    "plain Keras, weights 1 : 5.7": (
        {"is_private": False, "class_weight": {0: 1.0, 1: 5.7}},
        0.5,
    ),
}


@click.command()
@click.option("--seeds", default=3, show_default=True, help="how many runs of each")
def main(seeds: int) -> None:
    """Trains models with all methods, and prints a table of the results."""
    table = rich.table.Table(title=f"epsilon = {_EPSILON}, {seeds} seeds")
    for heading in ("way", "mean p", "balanced accuracy", "AUC"):
        table.add_column(heading)
    for name, (settings, threshold) in WAYS.items():
        rows = []
        for seed in range(seeds):
            x, y = customers(seed)
            model = trained(x[:_TRAINING], y[:_TRAINING], seed, **settings)
            p = model.predict(x[_TRAINING:], batch_size=_HELD_OUT, verbose=0)[:, 0]
            rows.append(measured(y[_TRAINING:], p, threshold))
        means = np.mean(rows, axis=0)
        errors = np.std(rows, axis=0, ddof=1) / np.sqrt(seeds)
        table.add_row(name, *(f"{m:.3f} ± {e:.3f}" for m, e in zip(means, errors)))
    rich.console.Console(width=80).print(table)


if __name__ == "__main__":
    main()
