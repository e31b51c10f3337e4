"""Toeplitz problems: the functions that are minimized, and their optima."""

import itertools

import numpy as np
import pytest
import scipy.linalg
import tensorflow as tf

from tf_bandmf import strategies, workloads
from tf_bandmf.analysis import vector_contributions
from tf_bandmf.optimize import descent, objectives, toeplitz, traced_toeplitz
from tf_bandmf.optimize.options import Options
from tf_bandmf.optimize.toeplitz import named_objective
from tf_bandmf.optimize.toeplitz_sensitivity import SquaredSensitivity
from tf_bandmf.participation import MinSep


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


# A column of each kind: falling, rising after lag b, and with entries below 0.
COLUMNS = {
    "falling": 0.8 ** np.arange(12),
    "rising": 1.0 + 0.3 * np.sin(np.arange(12) + 0.3),
    "signs": 0.9 ** np.arange(12) * np.cos(1.1 * np.arange(12)),
}


@pytest.mark.parametrize("fixed_order", [False, True])
@pytest.mark.parametrize("kind", COLUMNS)
def test_the_squared_sensitivity_is_the_largest_and_has_the_right_gradient(
    kind, fixed_order
):
    n, b, k = 12, 3, 4
    column = COLUMNS[kind]
    squared = SquaredSensitivity(n, b, k, fixed_order)
    value, gradient = squared(column)
    # Of all patterns and signs; vectors reach more than signs, a majorant more still.
    dense = scipy.linalg.toeplitz(column, np.zeros(n))
    patterns = [
        steps
        for steps in itertools.combinations(range(n), k)
        if (np.all(np.diff(steps) == b) if fixed_order else min(np.diff(steps)) >= b)
    ]
    best = max(
        np.linalg.norm(dense[:, steps] @ signs) ** 2
        for steps in patterns
        for signs in itertools.product([1.0, -1.0], repeat=k)
    )
    assert value >= best * (1.0 - 1e-5)
    if kind == "falling" or (fixed_order and kind == "rising"):
        assert value == pytest.approx(best, rel=1e-12)
    if fixed_order:
        columns = dense[:, ::b]
        exact = vector_contributions.largest((columns.T @ columns)[None])[1]
        assert value == pytest.approx(exact, rel=1e-5)
    for t in range(n):
        step = 1e-6 * np.eye(n)[t]
        difference = squared(column + step)[0] - squared(column - step)[0]
        assert gradient[t] == pytest.approx(difference / 2e-6, rel=1e-5, abs=1e-5)


def test_what_needs_tensorflow_is_left_to_it():
    plain = workloads.prefix_sum(8)
    scheduled = workloads.prefix_sum(8, np.linspace(1.0, 0.5, 8))
    assert named_objective(plain, "mean") == "mean"
    assert named_objective(plain, "max") == named_objective(plain, "last") == "last"
    assert named_objective(scheduled, "mean") is None
    assert named_objective(plain, objectives.MEAN) is None
    assert named_objective(plain, "median") is None


@pytest.mark.slow
def test_more_inverse_bands_are_never_worse_where_the_theorem_fails():
    """b = 12 with 24 bands: without a penalty the sensitivity is far above the norm."""
    n, participation = 240, MinSep(12, 20)
    workload = workloads.momentum_sgd(n, 0.9)
    actual = {
        p: strategies.optimized_banded_inverse(workload, participation, p)
        for p in (2, 4, 8, 16, 24)
    }
    errors = [actual[p].rmse(workload, participation) for p in actual]
    assert np.all(np.diff(errors) <= 1e-9 * np.array(errors[1:]))
    assert actual[24].sensitivity(participation).value == pytest.approx(
        np.linalg.norm(
            actual[24].matrix.matmul((np.arange(n) % 12 == 0).astype(float)[:, None])
        ),
        rel=1e-3,
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
