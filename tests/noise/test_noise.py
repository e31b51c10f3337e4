"""The noise generator returns the rows of C^-1 Z one after another."""

import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf import matrices, noise, strategies, workloads
from tf_bandmf.noise import recurrences
from tf_bandmf.noise.keys import NoiseKey

N = 12
KEY = NoiseKey.for_testing(0)


WORKLOAD = workloads.momentum_sgd(N, 0.5, 0.9)
# One strategy for each algorithm that computes the noise of a step.
STRATEGIES = {
    "lambda_cgd": strategies.lambda_cgd(N, 0.7),
    "lambda_cgd_normalized": strategies.lambda_cgd(N, 0.7, True),
    "bsr_normalized": strategies.bsr(WORKLOAD, 4, True),
    "bisr_many_bands": strategies.bisr(WORKLOAD, 7),
    "dense": strategies.Strategy("dense", matrices.Dense.example(N)),
    "buffered": strategies.Strategy("blt", matrices.BufferedToeplitz.example(N)),
}


def run(generator, step_function=None, num_steps=N):
    state = generator.initial_state(KEY)
    outputs = []
    for step in range(num_steps):
        output, state = (step_function or generator.next)(state, tf.constant(step))
        outputs.append(output.numpy())
    return np.stack(outputs)


def independent_normals(num_parameters, num_steps=N):
    keys = tf.constant(KEY.step_keys(num_steps))
    rows = [noise.standard_normals(keys[i], num_parameters) for i in range(num_steps)]
    return np.stack(rows).astype(np.float64)


@pytest.mark.parametrize("name", ["bisr_many_bands", "dense"])
def test_terms_that_a_gpu_adds_by_twos_are_the_same(name, monkeypatch):
    strategy = STRATEGIES[name]
    expected = run(noise.NoiseGenerator(strategy, 100, jit_compile=False))
    monkeypatch.setattr(recurrences, "device_kind", lambda: "GPU")
    by_twos = run(noise.NoiseGenerator(strategy, 100, jit_compile=False))
    np.testing.assert_allclose(by_twos, expected, rtol=0, atol=1e-5)


def test_replay_is_bit_identical():
    # Regenerated normals must be bit-identical to the originals.
    generator = noise.NoiseGenerator(STRATEGIES["lambda_cgd"], 300)
    keys = generator.initial_state(KEY).step_keys
    z = [noise.standard_normals(keys[i], 300).numpy() for i in range(N)]
    streamed = run(generator)
    for i in range(1, N):
        # In float64, this reference has no intermediate rounding, like the fused
        # multiply-add of XLA.
        exact = z[i].astype(np.float64) + np.float32(-0.7) * z[i - 1].astype(np.float64)
        np.testing.assert_allclose(streamed[i], exact, rtol=2.0**-23, atol=1e-7)


# `keep_normals` is only possible for strategies with a banded inverse.
@pytest.mark.parametrize(
    ("name", "keep_normals"),
    [
        ("bsr_normalized", False),
        ("lambda_cgd_normalized", True),
        ("bisr_many_bands", False),
        ("dense", False),
        ("buffered", False),
    ],
)
@pytest.mark.slow_cases("dense-*", "buffered-*", "bisr_*", "lambda_*")
def test_shards_are_the_parts_of_the_vector_of_one_device(name, keep_normals):
    strategy, size = STRATEGIES[name], 3 * 4096 + 100
    jit_compile = name == "lambda_cgd_normalized"
    options = {"keep_normals": keep_normals, "jit_compile": jit_compile}
    whole = run(noise.NoiseGenerator(strategy, size, **options))
    generator = noise.NoiseGenerator(strategy, size, num_shards=3, **options)
    assert generator.shard_size == 2 * 4096
    parts = [
        run(generator, lambda state, step, r=r: generator.next(state, step, r))
        for r in range(3)
    ]
    joined = np.concatenate(parts, axis=1)[:, :size]
    np.testing.assert_allclose(joined, whole, rtol=0, atol=1e-6 * np.abs(whole).max())


@pytest.mark.parametrize("name", ["lambda_cgd_normalized", "bisr_many_bands"])
@pytest.mark.slow_cases("bisr_many_bands")
def test_kept_normals_give_the_noise_of_regenerated_ones(name):
    strategy = STRATEGIES[name]
    again = noise.NoiseGenerator(strategy, 5000)
    kept = noise.NoiseGenerator(strategy, 5000, keep_normals=True)
    bands = strategy.matrix.stored_bands
    assert (again.memory_vectors, kept.memory_vectors) == (0, bands - 1)
    expected = run(again)
    # XLA may compile sums of kept normals differently, so the last bits may differ.
    np.testing.assert_allclose(run(kept), expected, rtol=0, atol=2e-6)
    # Training keeps the normals in a variable, which must give the same noise.
    buffer = tf.Variable(tf.zeros([kept.memory_vectors, 5000]))
    keys = kept.initial_state(KEY).step_keys

    def from_variable(state, step):
        row, updates = kept.row(keys, buffer, kept.checked_step(step))
        with tf.control_dependencies([row]):
            for update in updates:
                buffer.scatter_update(update)
        return row, state

    from_buffer = run(kept, tf.function(from_variable))
    np.testing.assert_allclose(from_buffer, expected, rtol=0, atol=2e-6)


@pytest.mark.invariant(1)
def test_horizon():
    for name in ("lambda_cgd", "bsr_normalized", "bisr_many_bands", "buffered"):
        generator = noise.NoiseGenerator(STRATEGIES[name], 3)
        state = generator.initial_state(KEY)
        in_graph = tf.function(generator.next)
        for step in (N, N + 5, -1):
            with pytest.raises(tf.errors.InvalidArgumentError, match="12 steps"):
                generator.next(state, tf.constant(step))
            with pytest.raises(tf.errors.InvalidArgumentError, match="12 steps"):
                in_graph(state, tf.constant(step))
        with pytest.raises(ValueError, match="XLA"):
            tf.function(generator.next, jit_compile=True)(state, tf.constant(0))


def test_past_the_horizon_there_is_no_number_even_without_the_assertion():
    generator = noise.NoiseGenerator(STRATEGIES["lambda_cgd"], 3)
    keys = generator.initial_state(KEY).step_keys

    step = tf.Variable(N - 1, dtype=tf.int64)

    @tf.function(jit_compile=True)
    def unchecked():
        return generator.row(keys, tf.zeros([0, 3]), step.value())[0]

    assert np.all(np.isfinite(unchecked()))
    step.assign(N)
    assert np.all(np.isnan(unchecked()))


@pytest.mark.invariant(8)
def test_every_random_number_has_one_use():
    z = independent_normals(5000)
    assert len(np.unique(z.astype(np.float32))) > 0.999 * z.size
    other = noise.standard_normals(
        tf.constant(NoiseKey.for_testing(1).step_keys(1)[0]), 5000
    )
    assert abs(np.corrcoef(z[0], other)[0, 1]) < 5 / np.sqrt(5000)
