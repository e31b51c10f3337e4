"""The networks, data sets and mechanisms that `cnn.py` trains."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import datasets
import keras
import numpy as np

# The possible readouts. A run releases either its last weights or a moving average.
READOUTS = ("last", "moving average")


@dataclasses.dataclass(frozen=True)
class Row:
    """A mechanism and its settings.

    The learning rates are for gradients that are divided by the clip norm.

    Attributes:
      matched: True if the strategy is optimized for the task's momentum and decay,
        False if it is optimized for plain sums.
    """

    name: str
    mechanism: str
    sampling: str
    l2_norm_clip: float = 1.0
    clipping: str = "automatic"
    learning_rates: tuple[float, ...] = (0.2, 0.4)
    readouts: tuple[str, ...] = READOUTS
    matched: bool = False


@dataclasses.dataclass(frozen=True)
class Task:
    """A network, its data and its budget.

    Attributes:
      dataset: name for `datasets.load`.
      inputs: function that converts images to the network's inputs.
      batch_size: batch size if all training images are used.
      decay: the factor by which each step shrinks the weights.
    """

    name: str
    dataset: str
    inputs: Callable[[np.ndarray], np.ndarray]
    build_model: Callable[[], keras.Model]
    rows: tuple[Row, ...]
    batch_size: int
    epochs: int
    epsilon: float
    delta: float = 1e-5
    momentum: float = 0.9
    decay: float = 1.0
    ema_momentum: float = 0.99


def fashion_network() -> keras.Model:
    """Builds Tramèr and Boneh's network: 26,010 parameters; inputs [28, 28, 1]."""
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((28, 28, 1)),
            layers.ZeroPadding2D(2),
            layers.Conv2D(16, 8, strides=2, activation="tanh"),
            layers.MaxPooling2D(2, strides=1),
            layers.Conv2D(32, 4, strides=2, activation="tanh"),
            layers.MaxPooling2D(2, strides=1),
            layers.Flatten(),
            layers.Dense(32, activation="tanh"),
            layers.Dense(10),
        ]
    )


def cifar_network() -> keras.Model:
    """Builds three conv blocks: 113,738 parameters; inputs [32, 32, 3], logits [10]."""
    layers: list[keras.layers.Layer] = [keras.layers.Input((32, 32, 3))]
    for filters in (32, 64, 128):
        layers.append(
            keras.layers.Conv2D(filters, 3, padding="same", activation="relu")
        )
        layers.append(keras.layers.MaxPooling2D(2))
    return keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(10)])


FASHION_MNIST = Task(
    "fashion-mnist-cnn",
    dataset="fashion-mnist",
    inputs=lambda images: images[..., None],
    build_model=fashion_network,
    # With this batch size, an epoch has 30 steps. The published batch size is 2048.
    batch_size=2000,
    epochs=40,
    epsilon=3.0,
    rows=(
        # The published settings are a clip norm of 0.1 and a learning rate of 4. For
        # gradients divided by the clip norm, this is a rate of 4 x 0.1 = 0.4.
        Row("published", "identity", "poisson", 0.1, "flat", (0.4,), ("last",)),
        Row("DP-SGD", "identity", "poisson", learning_rates=(0.2, 0.4, 0.8)),
        Row("BISR", "bisr:4", "balls-in-bins"),
        # Without amplification by sampling, the models have more noise, so these rows
        # use smaller learning rates.
        Row(
            "DP-SGD, no sampling",
            "identity",
            "fixed-order",
            learning_rates=(0.05, 0.1, 0.2),
        ),
        Row("BISR, no sampling", "bisr", "fixed-order"),
    ),
)


def _tuned(
    name: str, mechanism: str, sampling: str, words: str, rates: tuple[float, ...]
) -> Row:
    """Returns a row whose strategy is optimized for the task's momentum and decay.

    Args:
      name: the name of the mechanism.
      mechanism: the specification of the mechanism.
      sampling: the sampling for the plan.
      words: the sampling in words, for the row's name.
      rates: the learning rates to try.
    """
    name = f"{name} tuned, {words}"
    return Row(name, mechanism, sampling, learning_rates=rates, matched=True)


# Learning rates are a geometric sequence with ratio 2, extended until the best rate is
# at neither end. The sequence starts at half of the rate that is published for training
# without sampling.
TUNED = (
    _tuned("BISR", "bisr:4", "fixed-order", "no sampling", (0.35, 0.7, 1.4)),
    _tuned("DP-SGD", "identity", "fixed-order", "no sampling", (0.05, 0.1, 0.2)),
    _tuned("BISR", "bisr:4", "balls-in-bins", "balls in bins", (0.35, 0.7, 1.4)),
    _tuned("DP-SGD", "identity", "poisson", "Poisson", (0.05, 0.1, 0.2, 0.4)),
)

CIFAR_10 = Task(
    "cifar-10-cnn",
    dataset="cifar-10",
    inputs=datasets.standardized_colors,
    build_model=cifar_network,
    batch_size=512,
    epochs=10,
    epsilon=9.0,
    decay=0.9999,
    rows=TUNED,
)


TASKS = {task.name: task for task in (FASHION_MNIST, CIFAR_10)}
