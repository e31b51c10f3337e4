"""Compares the error of a Toeplitz strategy and its gradient with TensorFlow."""

import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf import workloads
from tf_bandmf.optimize import objectives, toeplitz, traced_toeplitz


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("goal", [objectives.MEAN, objectives.LAST])
def test_value_and_gradient_of_a_series_are_those_that_are_traced(goal, inverse):
    workload = workloads.momentum_sgd(40, 0.5, 0.99)
    c = np.array([1.0, -0.3, -0.1, -0.05, 0.02, -0.01])
    value, gradient = toeplitz.SeriesError(workload, goal.name, inverse)(c)
    with tf.GradientTape() as tape:
        coefficients = tf.constant(c)
        tape.watch(coefficients)
        errors = traced_toeplitz.per_step_errors(coefficients, workload, inverse)
        expected = goal.reduction(errors)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    np.testing.assert_allclose(
        gradient, tape.gradient(expected, coefficients), rtol=1e-9
    )
