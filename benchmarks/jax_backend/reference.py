"""Writes what the TensorFlow side of a run has, for `in_jax.py` to be held against.

    python benchmarks/jax_backend/reference.py --folder reference

In the main environment. One file `reference.npz`: keys and rows of noise of each mechanism,
the batches of a plan, a network with a batch and its clipped sum; and `statement.txt`.
"""

from __future__ import annotations

import argparse
import pathlib

import keras
import numpy as np
import tensorflow as tf

import tf_bandmf
from tf_bandmf import matrices, noise, strategies, workloads
from tf_bandmf.keras.clipping import clipped_gradient_sums
from tf_bandmf.noise.keys import NoiseKey

STEPS, SIZE, EXAMPLES, BATCH, CLIP = 6, 10_001, 64, 16, 0.5


def families() -> dict[str, strategies.Strategy]:
    prefix = workloads.prefix_sum(STEPS)
    buffered = matrices.BufferedToeplitz([0.99, 0.8, 0.3], [0.9, 0.6, 0.1], STEPS)
    return {
        "bisr": strategies.bisr(prefix, 4),
        "banded": strategies.bsr(prefix, 4),
        "blt": strategies.Strategy("blt", buffered),
    }


def noise_of(name: str, generator: str) -> dict[str, np.ndarray]:
    """Keys, what the mechanism multiplies with, and the rows of all steps."""
    strategy = families()[name]
    source = noise.NoiseGenerator(strategy, SIZE, generator=generator)
    state = source.initial_state(NoiseKey.for_testing(0))
    rows = []
    for step in range(STEPS):
        row, state = source.next(state, tf.constant(step, tf.int64))
        rows.append(row.numpy())
    streaming = strategy.matrix.streaming()
    if name == "blt":
        factors = np.stack([streaming.scales, streaming.decays])
    else:
        factors = streaming.rows()
    prefix = f"{name} {generator} "
    return {
        f"{prefix}keys": np.asarray(state.step_keys),
        f"{prefix}factors": np.asarray(factors, np.float32),
        f"{prefix}rows": np.stack(rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, np.ndarray] = {}
    for generator in ("philox", "chacha20"):
        for name in families():
            arrays |= noise_of(name, generator)
    plan = tf_bandmf.plan(
        "bisr",
        noise_multiplier=1.0,
        delta=1e-5,
        num_examples=EXAMPLES,
        batch_size=BATCH,
        epochs=2,
        test_seed=0,
    )
    rng = np.random.default_rng(0)
    x = rng.normal(size=(EXAMPLES, 20)).astype(np.float32)
    y = rng.integers(0, 5, EXAMPLES)
    # The place of an example is its first feature: the batches say which came.
    places = np.arange(EXAMPLES, dtype=np.float32)
    batches = plan.batches(np.column_stack([places, x]), y).dataset(0)
    for step, batch in enumerate(batches):
        arrays[f"batch {step}"] = np.asarray(batch["x"])[:, 0].astype(np.int64)
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(32, "tanh"), keras.layers.Dense(5)]
    model = keras.Sequential([keras.Input((20,)), *layers])
    tf_bandmf.keras.make_private(model)
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    taken = arrays["batch 0"]
    clipped = clipped_gradient_sums(model, x[taken], y[taken], l2_norm_clip=CLIP)
    for i, (weight, total) in enumerate(zip(model.get_weights(), clipped.sums)):
        arrays |= {f"weight {i}": weight, f"sum {i}": np.asarray(total)}
    np.savez(options.folder / "reference.npz", x=x, y=y, clip=CLIP, **arrays)
    (options.folder / "statement.txt").write_text(str(plan.statement()) + "\n")


if __name__ == "__main__":
    main()
