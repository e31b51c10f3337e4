"""The fast error engine, compared with dense linear algebra and finite differences."""

import unittest.mock

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from tf_bandmf import matrices, strategies, workloads
from tf_bandmf.analysis import error, gram_recursion


def random_rows(rng, n, w):
    """Returns the rows [n, w] of a well-conditioned banded matrix, padded with zeros."""
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
    toeplitz=st.booleans(),
    momentum=st.sampled_from([0.0, 0.9]),
    decay=st.sampled_from([1.0, 0.95]),
    schedule=st.booleans(),
    inverse=st.booleans(),
    scaled=st.booleans(),
    seed=st.integers(0),
)
def test_error_of_random_strategies_is_that_of_the_dense_factor(
    n, b, toeplitz, momentum, decay, schedule, inverse, scaled, seed
):
    rng = np.random.default_rng(seed)
    rates = rng.uniform(0.1, 2.0, size=n) if schedule else None
    workload = workloads.momentum_sgd(n, momentum, decay, rates)
    rows = random_rows(rng, n, min(b, n))
    matrix = matrices.RowBanded(rows)
    if toeplitz:
        matrix = matrices.ToeplitzBanded(rows[-1] / rows[-1, 0], n)
    matrix = matrices.Inverse(matrix) if inverse else matrix
    matrix = matrix.normalize_columns() if scaled else matrix
    factor = workload.to_dense() @ np.linalg.inv(matrix.to_dense())
    # (Short runs use the dense algorithm, which tests/contracts tests.)
    with unittest.mock.patch.object(error, "_DENSE_STEPS", 0):
        actual = error.per_step_squared_error(matrix, workload)
    np.testing.assert_allclose(actual, np.sum(factor**2, axis=1), rtol=1e-9)


def test_sizes_must_agree():
    with pytest.raises(ValueError, match="5 steps"):
        strategies.identity(5).per_step_squared_error(workloads.prefix_sum(6))
