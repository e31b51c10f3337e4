"""Pairs of float32 beside float64, and the recursion in them."""

import numpy as np
import pytest
import tensorflow as tf

import tf_bandmf
from tf_bandmf.analysis import error, gram_recursion, numbers
from tf_bandmf.strategies import optimized_banded


def random_tensor(seed, *shape):
    rng = np.random.default_rng(seed)
    return tf.constant(rng.normal(size=shape) * 10.0 ** rng.uniform(-3, 3, shape))


@pytest.mark.parametrize("name", ["plus", "times"])
def test_sums_and_products(name):
    a, b = random_tensor(0, 4000), random_tensor(1, 4000)
    operation = getattr(numbers, name)
    found = operation(numbers.as_pair(a), numbers.as_pair(b))
    # Float32 has 6e-8; of a sum whose terms cancel, relative to these.
    scale = np.abs(a) + np.abs(b) if name == "plus" else np.abs(a * b)
    assert np.max(np.abs(numbers.as_float64(found) - operation(a, b)) / scale) < 1.2e-10


@pytest.mark.parametrize("transpose", [False, True])
def test_matrix_products_and_sums(transpose):
    a, b = random_tensor(2, 3, 5, 7), random_tensor(3, 3, 7, 6)
    options = dict(transpose_a=transpose, transpose_b=transpose)
    if transpose:
        a, b = tf.linalg.matrix_transpose(a), tf.linalg.matrix_transpose(b)
    found = numbers.matmul(numbers.as_pair(a), numbers.as_pair(b), **options)
    scale = tf.matmul(tf.abs(a), tf.abs(b), **options)
    missed = numbers.as_float64(found) - tf.matmul(a, b, **options)
    assert np.max(np.abs(missed) / scale) < 1e-10
    total = numbers.as_float64(numbers.sums(numbers.as_pair(a)))
    np.testing.assert_allclose(total, tf.reduce_sum(a, axis=-1), rtol=1e-9)


def value_and_gradient(rows, upstream, device):
    with tf.GradientTape() as tape:
        tape.watch(rows)
        value = gram_recursion.inverse_row_norms(rows, device=device)
    return value, tape.gradient(value, rows, upstream)


@pytest.fixture
def without_float64(monkeypatch):
    monkeypatch.setattr(gram_recursion, "has_float64", lambda device: False)


@pytest.mark.slow
@pytest.mark.parametrize("num_steps", [50, 1500])
def test_the_recursion_in_pairs_has_ten_digits(num_steps, without_float64):
    rng = np.random.default_rng(4)
    rows = 0.1 * rng.normal(size=(num_steps, 16))
    rows[:, 0] += 1.5
    rows, upstream = tf.constant(rows), tf.constant(rng.normal(size=num_steps))
    expected = value_and_gradient(rows, upstream, None)
    for found, exact in zip(value_and_gradient(rows, upstream, "CPU:0"), expected):
        distance = np.max(np.abs(found - exact)) / np.max(np.abs(exact))
        # The control: pairs were used.
        assert 0.0 < distance < 1e-9


@pytest.mark.slow
def test_a_strategy_that_is_optimized_in_pairs_is_that_of_float64(without_float64):
    workload = tf_bandmf.workloads.prefix_sum(256)
    strategies = [
        optimized_banded(workload, 4, gap_tolerance=1e-4, device=device)
        for device in (None, "CPU:0")
    ]
    exact, found = (
        error.root_mean_squared_error(
            error.per_step_squared_error(strategy.matrix, workload)
        )
        for strategy in strategies
    )
    assert found == pytest.approx(exact, rel=1e-6)
    assert strategies[1].diagnostics["optimality_gap"] <= 1e-4


def test_a_device_with_float64_uses_it():
    rows = tf.constant(np.tile([1.0, -0.5], (40, 1)))
    ones = tf.ones([40], tf.float64)
    for found, expected in zip(
        value_and_gradient(rows, ones, "CPU:0"), value_and_gradient(rows, ones, None)
    ):
        np.testing.assert_array_equal(found, expected)
    assert gram_recursion.has_float64("/device:GPU:1")
    assert not gram_recursion.has_float64("TPU:0")
