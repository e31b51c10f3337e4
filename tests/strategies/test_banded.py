"""Compares optimized banded strategies with known optima, and tests certificates."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf import matrices, strategies, workloads
from tf_bandmf.participation import FixedEpochOrder, MinSep

# The optimal strategy C of arXiv:2405.15913, Example B.1. Column j of this array
# contains the entries of column j of C, starting at the diagonal.
EXAMPLE = [
    [0.740, 0.822, 0.876, 0.821, 0.855, 0.882, 0.892, 0.936, 1.000],
    [0.500, 0.492, 0.395, 0.462, 0.442, 0.403, 0.409, 0.353, 0.000],
    [0.450, 0.286, 0.278, 0.335, 0.272, 0.243, 0.194, 0.000, 0.000],
]


def mean_error(strategy, workload):
    return np.mean(strategy.per_step_squared_error(workload))


@functools.cache
def example():
    """Optimizes the strategy of arXiv:2405.15913, Example B.1, from the default start."""
    return strategies.optimized_banded(
        workloads.prefix_sum(9), 3, gradient_tolerance=1e-8, gap_tolerance=1e-8
    )


def square_root(workload, bands):
    """Returns a closed-form strategy that an optimization can start from."""
    return strategies.bsr(workload, bands, column_normalized=True)


def test_example_b1_of_scaling_up():
    columns = matrices.columns_from_rows(example().matrix.rows)
    np.testing.assert_allclose(columns, EXAMPLE, atol=6e-4)
    np.testing.assert_allclose(example().matrix.column_norms(), 1.0, rtol=1e-14)
    actual = example().diagnostics
    assert actual["converged"] is True
    assert actual["objective"] == "mean"
    assert 0.0 <= actual["optimality_gap"] < 1e-6
    assert actual["num_iterations"] > 0 and actual["seconds"] > 0.0
    mean = mean_error(example(), workloads.prefix_sum(9))
    np.testing.assert_allclose(actual["value"], mean, rtol=1e-12)


@pytest.mark.slow
def test_without_equal_column_norms_the_optimum_is_certified():
    workload, order = workloads.prefix_sum(9), FixedEpochOrder(3, 1, 3)
    actual = strategies.optimized_banded(
        workload,
        3,
        column_normalized=False,
        participation=order,
        start=square_root(workload, 3),
        gap_tolerance=1e-9,
    )
    sensitivity = actual.sensitivity(order)
    assert sensitivity.is_exact
    assert sensitivity.value == pytest.approx(1.0)
    assert 0.0 <= actual.diagnostics["optimality_gap"] <= 1e-5
    # A strategy with equal column norms has a larger error under this participation.
    equal = mean_error(example(), workload) * 3
    assert mean_error(actual, workload) < 0.999 * equal


def test_the_stated_gap_is_above_the_true_one():
    """The stated optimality gap is valid even at a start far from the optimum."""
    workload = workloads.prefix_sum(9)
    start = square_root(workload, 3)
    actual = strategies.optimized_banded(workload, 3, start=start, max_iterations=0)
    true_gap = 1.0 - mean_error(example(), workload) / mean_error(actual, workload)
    assert 1e-3 < true_gap <= actual.diagnostics["optimality_gap"] + 1e-9


@pytest.mark.slow
def test_a_function_of_the_errors_can_be_minimized_but_not_certified():
    workload = workloads.prefix_sum(9)
    actual = strategies.optimized_banded(
        workload, 3, objective=lambda v: tf.reduce_sum(tf.sqrt(v)), start=example()
    )
    assert actual.diagnostics["converged"]
    assert actual.diagnostics["optimality_gap"] is None
    root = np.sqrt(actual.per_step_squared_error(workload)).sum()
    assert root <= np.sqrt(example().per_step_squared_error(workload)).sum()


FREE = {"column_normalized": False}


@pytest.mark.parametrize(
    "bands, options, message",
    [
        (3, {**FREE, "participation": MinSep(3, 3)}, "must be a FixedEpochOrder"),
        (4, {**FREE, "participation": FixedEpochOrder(3, 1, 3)}, "steps per epoch, 3"),
        (3, {"start": strategies.identity(8)}, "num_steps must be 9"),
        (
            3,
            {"start": strategies.lambda_cgd(9, 0.5)},
            "strategy with a banded C",
        ),
    ],
)
def test_invalid_arguments_are_refused(bands, options, message):
    with pytest.raises(ValueError, match=message):
        strategies.optimized_banded(workloads.prefix_sum(9), bands, **options)


def test_an_objective_that_gives_other_values_is_traced_again():
    workload, weights = workloads.prefix_sum(9), np.ones(9)

    def weighted(errors):
        return tf.tensordot(tf.constant(weights), errors, 1)

    last = []
    for _ in range(2):
        actual = strategies.optimized_banded(workload, 3, objective=weighted)
        last.append(actual.per_step_squared_error(workload)[-1])
        weights[:-1] = 0.0
    assert last[1] < 0.99 * last[0]
