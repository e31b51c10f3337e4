"""The recursion that computes a strategy's error agrees with dense linear algebra."""

import unittest.mock

import hypothesis
import numpy as np
import tensorflow as tf
from hypothesis import strategies as st
from patterns import random_rows

from tf_bandmf import matrices, workloads
from tf_bandmf.analysis import error, gram_recursion


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
    # Setting `_DENSE_STEPS` to 0 forces the recursion. By default, short runs use the
    # dense algorithm, which is tested in tests/contracts.
    with unittest.mock.patch.object(error, "_DENSE_STEPS", 0):
        actual = error.per_step_squared_error(matrix, workload)
    np.testing.assert_allclose(actual, np.sum(factor**2, axis=1), rtol=1e-9)


def test_the_gradient_of_row_norms_is_that_of_finite_differences():
    rows = random_rows(np.random.default_rng(0), 9, 3)
    difference = np.zeros(rows.shape)
    difference[5, 1] = 1e-6
    variable = tf.constant(rows)
    with tf.GradientTape() as tape:
        tape.watch(variable)
        total = tf.reduce_sum(gram_recursion.inverse_row_norms(variable))
    actual = tape.gradient(total, variable)[5, 1] * 2e-6
    above, below = (
        tf.reduce_sum(gram_recursion.inverse_row_norms(tf.constant(rows + step)))
        for step in (difference, -difference)
    )
    np.testing.assert_allclose(actual, above - below, rtol=1e-5)
