"""TensorFlow Privacy's private steps on the models of `keras_steps.py`.

See `keras_peers.py`. `DPKerasSGDOptimizer` needs a batch's whole Jacobian: 20 GB for the
CNN, so it runs for the MLP alone.
"""

from __future__ import annotations

from typing import Callable

import numpy as np
import tensorflow as tf
import tensorflow_privacy as tfp
from peer_timing import BATCH_SIZES, options, report
from tensorflow_privacy.privacy.fast_gradient_clipping import layer_registry

VOCABULARY, LENGTH, WIDTH = 1000, 64, 128
layers = tf.keras.layers


def mlp() -> tuple:
    inputs = tf.keras.Input((784,))
    x = layers.Dense(512, "relu")(inputs)
    return inputs, layers.Dense(10)(layers.Dense(512, "relu")(x))


def cnn() -> tuple:
    x = inputs = tf.keras.Input((32, 32, 3))
    for filters in (32, 64, 128):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D()(x)
    return inputs, layers.Dense(10)(layers.Dense(96, "relu")(layers.Flatten()(x)))


def transformer() -> tuple:
    inputs = tf.keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(VOCABULARY, WIDTH)(inputs)
    for _ in range(2):
        h = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, WIDTH // 4)(h, h)
        h = layers.LayerNormalization()(x)
        x = x + layers.Dense(WIDTH)(layers.Dense(4 * WIDTH, "gelu")(h))
    return inputs, layers.Dense(VOCABULARY)(layers.LayerNormalization()(x))


MODELS = {"mlp": mlp, "cnn": cnn, "transformer": transformer}


def data(name: str) -> tuple[tf.Tensor, tf.Tensor]:
    rng, size = np.random.default_rng(0), BATCH_SIZES[name]
    if name == "transformer":
        text = rng.integers(0, VOCABULARY, (size, LENGTH + 1))
        return tf.constant(text[:, :-1], tf.int32), tf.constant(text[:, 1:])
    shape = (784,) if name == "mlp" else (32, 32, 3)
    x = rng.normal(size=(size, *shape)).astype(np.float32)
    return tf.constant(x), tf.constant(rng.integers(0, 10, size))


def step_of(name: str, kind: str) -> Callable[[], object]:
    tf.keras.utils.set_random_seed(0)
    ends = MODELS[name]()
    reduction = "none" if kind == "DPKerasSGDOptimizer" else "sum_over_batch_size"
    loss = tf.keras.losses.SparseCategoricalCrossentropy(True, reduction=reduction)
    optimizer = tf.keras.optimizers.legacy.SGD(1e-3)
    if kind.startswith("DPModel"):
        extra = {}
        if kind == "DPModel fast":
            extra["layer_registry"] = layer_registry.make_default_layer_registry()
        model = tfp.DPModel(
            l2_norm_clip=1.0,
            noise_multiplier=1.0,
            inputs=ends[0],
            outputs=ends[1],
            **extra,
        )
    else:
        model = tf.keras.Model(*ends)
    if kind == "DPKerasSGDOptimizer":
        optimizer = tfp.DPKerasSGDOptimizer(1.0, 1.0, learning_rate=1e-3)
    model.compile(optimizer, loss)
    x, y = data(name)
    return lambda: model.train_on_batch(x, y)


if __name__ == "__main__":
    chosen = options()
    print(f"TensorFlow {tf.__version__}")
    for name in chosen.models.split(","):
        kinds = ["ordinary", "DPModel", "DPModel fast"]
        if name == "mlp":
            kinds.append("DPKerasSGDOptimizer")
        makers = {k: lambda name=name, k=k: step_of(name, k) for k in kinds}
        report(name, makers, chosen.rounds)
