"""Toeplitz problems: the functions that are minimized, and their optima."""

import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf import workloads
from tf_bandmf.optimize import descent, objectives, toeplitz, traced_toeplitz
from tf_bandmf.optimize.options import Options


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


def bowl(x):
    return float(np.sum(np.arange(1, 4) * (x - 2.0) ** 2)), 2.0 * np.arange(1, 4) * (
        x - 2.0
    )


def test_descent_finds_the_minimum_and_says_why_it_ended():
    actual = descent.minimize(bowl, np.zeros(3), Options(50, 1e-9))
    assert actual.converged and actual.num_iterations < 50
    np.testing.assert_allclose(actual.position, 2.0, atol=1e-6)
    short = descent.minimize(bowl, np.zeros(3), Options(1, 1e-9))
    assert not short.converged and "max_iterations = 1" in short.message
    assert short.value < bowl(np.zeros(3))[0]


def test_descent_passes_over_regions_without_a_value():
    def log_barrier(x):
        if x[0] <= 0.0:
            return np.inf, np.zeros(1)
        return float(x[0] - 1e-3 * np.log(x[0])), np.array([1.0 - 1e-3 / x[0]])

    actual = descent.minimize(log_barrier, np.ones(1), Options(100, 1e-8))
    assert actual.converged
    np.testing.assert_allclose(actual.position, 1e-3, rtol=1e-4)


def test_descent_with_a_gradient_that_is_none_is_not_called_converged():
    actual = descent.minimize(
        lambda x: (float(x.sum()), -np.ones(2)), np.ones(2), Options(9, 0.1)
    )
    assert not actual.converged and actual.value == 2.0
