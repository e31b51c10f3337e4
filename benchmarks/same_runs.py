"""Ten small private runs, each with a known seed: digests of their noise and weights.

    python benchmarks/same_runs.py --save before.json
    python benchmarks/same_runs.py --compare before.json

Run it with two versions of the library (`PYTHONPATH`) on one machine: a change that
promises the same behaviour leaves the bits as they were.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from typing import Any, Callable

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf import noise
from tf_bandmf.noise.keys import NoiseKey

NUM_EXAMPLES, BATCH_SIZE, EPOCHS = 48, 8, 2
NUM_STEPS = NUM_EXAMPLES // BATCH_SIZE * EPOCHS


def dense() -> keras.Model:
    return keras.Sequential(
        [keras.Input((6,)), layers.Dense(5, "tanh"), layers.Dense(3)]
    )


def dropout() -> keras.Model:
    return keras.Sequential(
        [keras.Input((6,)), layers.Dense(8), layers.Dropout(0.3), layers.Dense(3)]
    )


def convolution() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Reshape((6, 1)),
            layers.Conv1D(4, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(3),
        ]
    )


def attention() -> keras.Model:
    inputs = keras.Input((6,))
    x = layers.Dense(4)(layers.Reshape((6, 1))(inputs))
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 2)(x, x))
    return keras.Model(inputs, layers.Dense(3)(layers.Flatten()(x)))


def recurrent() -> keras.Model:
    return keras.Sequential(
        [keras.Input((6,)), layers.Reshape((6, 1)), layers.LSTM(4), layers.Dense(3)]
    )


def sgd() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(0.1, momentum=0.9)


# Name: model, mechanism, inner optimizer, arguments of the plan, the optimizer, `compile`.
RUNS: dict[str, tuple[Callable[[], keras.Model], str, Callable[[], Any], Any]] = {
    "dense, DP-SGD": (dense, "identity", sgd, {}),
    "dense, lambda_cgd": (dense, "lambda_cgd:0.5", sgd, {}),
    "dense, bsr": (dense, "bsr:3", sgd, {"plan": {"l2_norm_clip": 0.5}}),
    "dense, bisr normalized": (dense, "bisr:3:normalized", keras.optimizers.Adam, {}),
    "dense, chacha20": (dense, "bsr:2", sgd, {"plan": {"generator": "chacha20"}}),
    "dense, poisson": (dense, "identity", sgd, {"plan": {"sampling": "poisson"}}),
    "dropout, banded": (dropout, "banded:3", sgd, {}),
    "convolution, balls in bins": (
        convolution,
        "bisr:2",
        sgd,
        {"plan": {"sampling": "balls-in-bins"}},
    ),
    "attention, bandinv": (attention, "bandinv:2", sgd, {}),
    "recurrent, blt": (recurrent, "blt:2", sgd, {"compile": {"jit_compile": True}}),
}


def digest(arrays: list[np.ndarray]) -> str:
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:16]


def trained(name: str) -> dict[str, str]:
    """Digests of the first rows of noise and of the weights after the run."""
    build, mechanism, inner, options = RUNS[name]
    plan = tf_bandmf.plan(
        mechanism,
        noise_multiplier=1.0,
        delta=1e-5,
        num_examples=NUM_EXAMPLES,
        batch_size=BATCH_SIZE,
        epochs=EPOCHS,
        test_seed=7,
        **{"sampling": "fixed-order", **options.get("plan", {})},
    )
    generator = noise.NoiseGenerator(plan.strategy, 50, generator=plan.generator)
    state = generator.initial_state(NoiseKey.for_testing(7))
    rows = []
    for step in range(NUM_STEPS):
        row, state = generator.next(state, tf.constant(step, tf.int64))
        rows.append(row.numpy())
    return {
        "noise": digest(rows),
        "weights": digest(_weights(build, inner, plan, options)),
    }


def _weights(
    build: Callable[[], keras.Model], inner: Any, plan: tf_bandmf.Plan, options: Any
) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM_EXAMPLES, 6)).astype(np.float32)
    y = rng.integers(0, 3, NUM_EXAMPLES)
    keras.utils.set_random_seed(1)
    tf.random.set_seed(1)
    model = tf_bandmf.keras.make_private(build())
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    settings = {"jit_compile": False, **options.get("compile", {})}
    model.compile(tf_bandmf.keras.PrivateOptimizer(inner(), plan), loss, **settings)
    is_random = "sampling" in options.get("plan", {})
    batches = plan.batches(x, y, sampler_seed=bytes(32) if is_random else None)
    model.fit(batches, epochs=EPOCHS, verbose=0)
    return model.get_weights()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", metavar="FILE")
    parser.add_argument("--compare", metavar="FILE")
    arguments = parser.parse_args()
    found = {name: trained(name) for name in RUNS}
    for name, digests in found.items():
        print(f"{name:28} {digests['noise']} {digests['weights']}")
    if arguments.save:
        with open(arguments.save, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)
    if arguments.compare:
        with open(arguments.compare, encoding="utf-8") as file:
            before = json.load(file)
        other = [name for name in RUNS if before.get(name) != found[name]]
        print(
            f"{len(RUNS) - len(other)} of {len(RUNS)} runs are the same, bit for bit."
        )
        if other:
            sys.exit(f"Other noise or weights: {', '.join(other)}.")


if __name__ == "__main__":
    main()
