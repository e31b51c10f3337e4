"""The fast error engine against dense linear algebra and finite differences."""

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from tf_bandmf import matrices, workloads
from tf_bandmf.analysis import error, gram_recursion
from tf_bandmf.analysis.affine_scans import affine_scan


def random_rows(rng, n, w):
    """A well-conditioned banded matrix, [n, w], zero left of the matrix."""
    rows = rng.uniform(-1.0, 1.0, size=(n, w)) / w
    rows[:, 0] = rng.uniform(0.7, 1.5, size=n)
    for j in range(1, w):
        rows[:j, j] = 0.0
    return rows


def dense(rows):
    n, w = rows.shape
    return sum(np.diag(rows[j:, j], -j) for j in range(min(w, n)))


def band(matrix, w):
    n = len(matrix)
    actual = np.zeros((n, w))
    for j in range(min(w, n)):
        actual[j:, j] = np.diag(matrix, -j)
    return actual


@hypothesis.settings(derandomize=True, deadline=None, max_examples=15)
@hypothesis.given(
    n=st.integers(1, 70),
    w=st.integers(1, 9),
    extra=st.integers(0, 5),
    seed=st.integers(0),
)
def test_row_norms_and_gradient_are_those_of_the_dense_inverse(n, w, extra, seed):
    rng = np.random.default_rng(seed)
    w = min(w, n)
    rows, squared_scale, weights = random_rows(rng, n, w), rng.random(n), rng.random(n)
    inverse = np.linalg.inv(dense(rows))
    block = None if extra == 0 else max(w - 1, 1) + extra
    x = tf.constant(rows)
    with tf.GradientTape() as tape:
        tape.watch(x)
        norms = gram_recursion.inverse_row_norms(x, tf.constant(squared_scale), block)
        total = tf.reduce_sum(weights * norms)
    expected = (inverse**2) @ squared_scale
    np.testing.assert_allclose(norms, expected, rtol=1e-10)
    full = inverse.T @ np.diag(weights) @ inverse @ np.diag(squared_scale) @ inverse.T
    gradient = tape.gradient(total, x).numpy()
    np.testing.assert_allclose(gradient, band(-2.0 * full, w), rtol=1e-9, atol=1e-10)


@pytest.mark.slow
def test_many_blocks_fill_several_levels_of_lanes():
    n, w, block = 1301, 4, 4
    rows = random_rows(np.random.default_rng(1), n, w)
    function = tf.function(gram_recursion.inverse_row_norms)
    actual = function(tf.constant(rows), block_size=block)
    expected = np.sum(np.linalg.inv(dense(rows)) ** 2, axis=1)
    np.testing.assert_allclose(actual, expected, rtol=1e-10)


@pytest.mark.parametrize("num", [1, 16, 17, 300])
@pytest.mark.parametrize("congruence", [True, False])
def test_affine_scan_is_the_sequential_recursion(num, congruence):
    rng = np.random.default_rng(num)
    left = rng.normal(size=(num, 3, 3)) / 3
    right = left if congruence else rng.normal(size=(num, 3, 3)) / 3
    shift = rng.normal(size=(num, 3, 3))
    operand = tf.constant(left)
    other = operand if congruence else tf.constant(right)
    actual = affine_scan(operand, other, tf.constant(shift)).numpy()
    z = np.zeros((3, 3))
    for t in range(num):
        z = left[t] @ z @ right[t].T + shift[t]
        np.testing.assert_allclose(actual[t], z, atol=1e-12)


@pytest.mark.parametrize("w, p", [(1, 1), (1, 4), (3, 1), (3, 5), (6, 2)])
def test_filtered_row_norms_are_those_of_the_dense_product(w, p):
    n = 53
    rng = np.random.default_rng(w + 10 * p)
    rows, average = random_rows(rng, n, w), random_rows(rng, n, p)
    product = np.linalg.solve(dense(rows), dense(average))
    actual = gram_recursion.filtered_row_norms(tf.constant(rows), tf.constant(average))
    np.testing.assert_allclose(actual, np.sum(product**2, axis=1), rtol=1e-10)


def test_the_gradient_of_filtered_norms_is_the_finite_difference():
    n, w = 40, 4
    rng = np.random.default_rng(3)
    rows, average = random_rows(rng, n, w), random_rows(rng, n, 3)
    directions = [random_rows(rng, n, w), random_rows(rng, n, 3)]

    def loss(x, y):
        return tf.reduce_logsumexp(gram_recursion.filtered_row_norms(x, y))

    x, y = tf.constant(rows), tf.constant(average)
    with tf.GradientTape() as tape:
        tape.watch([x, y])
        value = loss(x, y)
    actual = sum(
        float(tf.reduce_sum(g * d))
        for g, d in zip(tape.gradient(value, [x, y]), directions)
    )
    step = 1e-6
    ahead = loss(x + step * directions[0], y + step * directions[1])
    behind = loss(x - step * directions[0], y - step * directions[1])
    expected = float(ahead - behind) / (2 * step)
    assert abs(expected) > 1e-3
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


@pytest.mark.slow_cases("7-3-1", "1-1-0", "333-17-1")
@pytest.mark.parametrize("n, b, q", [(1, 1, 0), (7, 3, 1), (90, 4, 2), (333, 17, 1)])
def test_doubly_filtered_band_is_that_of_the_dense_matrix(n, b, q):
    rng = np.random.default_rng(n)
    strategy = random_rows(rng, n, b)
    rows = random_rows(rng, n, min(b + q, n))
    weights = rng.random(n)
    c, m = np.linalg.inv(dense(strategy)), np.linalg.inv(dense(rows))
    expected = band(c @ m.T @ np.diag(weights) @ m @ c.T, b)
    function = tf.function(gram_recursion.doubly_filtered_band)
    actual = function(tf.constant(strategy), tf.constant(rows), tf.constant(weights))
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-11)


@hypothesis.settings(derandomize=True, deadline=None, max_examples=12)
@hypothesis.given(
    n=st.integers(1, 45),
    b=st.integers(1, 6),
    momentum=st.sampled_from([0.0, 0.9]),
    decay=st.sampled_from([1.0, 0.95]),
    schedule=st.booleans(),
    inverse=st.booleans(),
    scaled=st.booleans(),
    seed=st.integers(0),
)
def test_error_of_random_strategies_is_that_of_the_dense_factor(
    n, b, momentum, decay, schedule, inverse, scaled, seed
):
    rng = np.random.default_rng(seed)
    rates = rng.uniform(0.1, 2.0, size=n) if schedule else None
    workload = workloads.momentum_sgd(n, momentum, decay, rates)
    matrix = matrices.RowBanded(random_rows(rng, n, min(b, n)))
    matrix = matrices.Inverse(matrix) if inverse else matrix
    matrix = matrix.normalize_columns() if scaled else matrix
    factor = workload.to_dense() @ np.linalg.inv(matrix.to_dense())
    actual = error.per_step_squared_error(matrix, workload)
    np.testing.assert_allclose(actual, np.sum(factor**2, axis=1), rtol=1e-10)


def test_too_small_a_block_is_refused():
    rows = tf.constant(random_rows(np.random.default_rng(0), 20, 6))
    with pytest.raises(ValueError, match="block_size must be >= bands - 1"):
        gram_recursion.inverse_row_norms(rows, block_size=4)
