"""Strategies that minimize the largest per-step error, and bounds on this error."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf import strategies, workloads
from tf_bandmf.optimize import lbfgs, maximum


def errors_of(position):
    """Returns three convex errors, whose minimax value is 1.25, at (1/2, 0)."""
    x, y = tf.unstack(position)
    return tf.stack([x**2 + y**2 + 1.0, (1.0 - x) ** 2 + y**2 + 1.0, 0.1 + 0.01 * x**2])


@functools.cache
def traced():
    smooth = maximum.SmoothMaximum(3)
    return smooth, lbfgs.Minimizer(
        lambda position: tf.math.log(smooth(errors_of(position))), 2
    )


def minimized(bound, **options):
    smooth, minimizer = traced()
    return maximum.minimize(
        smooth,
        functools.partial(minimizer.minimize, scale=1.0),
        lambda position: errors_of(tf.constant(position)).numpy(),
        bound,
        np.array([0.9, 0.7]),
        lbfgs.Options(**options),
    )


def least_weighted_mean(position, weights):
    """Minimizes the weighted mean exactly; it is quadratic."""
    first, second, third = weights
    x = second / (first + second + 0.01 * third)
    least = float(weights @ errors_of(tf.constant([x, 0.0], tf.float64)).numpy())
    return least, errors_of(tf.constant(position)).numpy()


@pytest.mark.slow
def test_the_least_maximum_is_found_with_its_certificate():
    actual = minimized(least_weighted_mean)
    np.testing.assert_allclose(actual.position, [0.5, 0.0], atol=1e-4)
    assert actual.value == pytest.approx(1.25, rel=1e-5)
    assert actual.value == max(errors_of(tf.constant(actual.position)).numpy())
    # (3e-4 of the gap arises because step weights are mixed with uniform weights.)
    assert 0.0 <= actual.optimality_gap < 4e-4


def test_a_certificate_within_its_tolerance_says_converged():
    actual = minimized(least_weighted_mean, gap_tolerance=1e-3)
    assert actual.converged and actual.message == "certified gap <= 0.001"


def test_without_a_bound_there_is_no_gap_and_the_same_minimum():
    actual, certified = minimized(None), minimized(least_weighted_mean)
    assert actual.optimality_gap is None
    # On a busy machine the last bits of a logarithm may differ between two runs.
    np.testing.assert_allclose(actual.position, certified.position, atol=1e-5)


@pytest.mark.slow
def test_general_columns_are_certified_to_a_thousandth_by_default():
    workload = workloads.prefix_sum(24)
    actual = strategies.optimized_banded(workload, 4, objective="max")
    largest = np.max(actual.per_step_squared_error(workload))
    assert actual.diagnostics["value"] == pytest.approx(largest)
    assert actual.diagnostics["optimality_gap"] < 1e-3
    # The optimum from another start is not better by more than the stated gap.
    start = strategies.bsr(workload, 4).normalize_columns()
    other = strategies.optimized_banded(
        workload, 4, objective="max", start=start, max_iterations=100
    )
    least = np.max(other.per_step_squared_error(workload))
    assert least > largest * (1.0 - actual.diagnostics["optimality_gap"])
