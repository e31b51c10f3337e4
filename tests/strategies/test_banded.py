"""Optimized banded strategies: known optima, the convex problem, certificates."""

import functools

import numpy as np
import pytest
import scipy.optimize
import tensorflow as tf

from tf_bandmf import matrices, strategies, workloads
from tf_bandmf.optimize import objectives
from tf_bandmf.participation import FixedEpochOrder, MinSep

# arXiv:2405.15913, Example B.1, by columns.
EXAMPLE = [
    [0.740, 0.822, 0.876, 0.821, 0.855, 0.882, 0.892, 0.936, 1.000],
    [0.500, 0.492, 0.395, 0.462, 0.442, 0.403, 0.409, 0.353, 0.000],
    [0.450, 0.286, 0.278, 0.335, 0.272, 0.243, 0.194, 0.000, 0.000],
]


def mean_error(strategy, workload):
    return np.mean(strategy.per_step_squared_error(workload))


def convex_optimum(workload, bands, separation):
    """min over X = C^T C of the mean error, by SLSQP on the entries of X."""
    n, a = workload.num_steps, workload.to_dense()
    lower = [(i, j) for i in range(n) for j in range(max(0, i - bands + 1), i + 1)]
    rows, columns = np.array(lower).T

    def matrix(x):
        full = np.zeros((n, n))
        full[rows, columns] = x
        return full + np.tril(full, -1).T

    def value(x):
        if np.linalg.eigvalsh(matrix(x))[0] <= 1e-9:
            return 1e6
        return np.trace(a @ np.linalg.solve(matrix(x), a.T)) / n

    def gradient(x):
        inverse = np.linalg.inv(matrix(x))
        full = -inverse @ a.T @ a @ inverse / n
        return np.where(rows == columns, 1.0, 2.0) * full[rows, columns]

    diagonal = [lower.index((i, i)) for i in range(n)]
    groups = [diagonal[g::separation] for g in range(separation)]
    constraint = {
        "type": "eq",
        "fun": lambda x: np.array([x[g].sum() - 1.0 for g in groups]),
    }
    start = np.zeros(len(lower))
    for g in groups:
        start[g] = 1.0 / len(g)
    return scipy.optimize.minimize(
        value,
        start,
        jac=gradient,
        method="SLSQP",
        constraints=[constraint],
        options={"ftol": 1e-13, "maxiter": 500},
    ).fun


@functools.cache
def example():
    """Problem B.1, from the default start."""
    return strategies.optimized_banded(
        workloads.prefix_sum(9), 3, gradient_tolerance=1e-8, gap_tolerance=1e-8
    )


def square_root(workload, bands):
    """A start that costs nothing."""
    return strategies.bsr(workload, bands, column_normalized=True)


def test_example_b1_of_scaling_up():
    columns = matrices.columns_from_rows(example().matrix.rows)
    np.testing.assert_allclose(columns, EXAMPLE, atol=6e-4)


def test_diagnostics_are_plain_and_complete():
    actual = example().diagnostics
    assert actual["converged"] is True
    assert actual["objective"] == "mean"
    assert 0.0 <= actual["optimality_gap"] < 1e-6
    assert actual["num_iterations"] > 0 and actual["seconds"] > 0.0
    mean = mean_error(example(), workloads.prefix_sum(9))
    np.testing.assert_allclose(actual["value"], mean, rtol=1e-12)


def test_columns_have_norm_one():
    np.testing.assert_allclose(example().matrix.column_norms(), 1.0, rtol=1e-14)
    actual = example().sensitivity(MinSep(3, 2))
    assert actual.is_exact
    assert actual.value == pytest.approx(np.sqrt(2.0))


@pytest.mark.slow
def test_equals_the_convex_solution_with_learning_rates():
    workload = workloads.momentum_sgd(8, 0.5, 0.9, np.linspace(1.0, 0.2, 8))
    start = square_root(workload, 3)
    actual = strategies.optimized_banded(workload, 3, start=start, gap_tolerance=1e-9)
    expected = convex_optimum(workload, 3, 8)
    np.testing.assert_allclose(mean_error(actual, workload), expected, rtol=1e-6)


@pytest.mark.slow
def test_equals_the_convex_solution_without_equal_column_norms():
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
    expected = convex_optimum(workload, 3, 3)
    np.testing.assert_allclose(mean_error(actual, workload), expected, rtol=1e-6)
    # Equal norms cost something under this participation.
    equal = mean_error(example(), workload) * 3
    assert mean_error(actual, workload) < 0.999 * equal


def test_the_stated_gap_is_above_the_true_one():
    """Far from the optimum, too; the bounds themselves: tests/optimize."""
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


@pytest.mark.slow
def test_a_function_of_the_errors_need_not_be_what_xla_compiles():
    @tf.custom_gradient
    def on_the_host(errors):
        value = tf.numpy_function(np.mean, [errors], tf.float64)
        share = 1.0 / errors.shape[0]
        return tf.ensure_shape(
            value, []
        ), lambda upstream: share * (upstream * tf.ones_like(errors))

    workload = workloads.prefix_sum(2048)
    actual = strategies.optimized_banded(
        workload, 16, objective=on_the_host, max_iterations=1
    )
    assert actual.diagnostics["num_iterations"] == 1
    rmse = actual.rmse(workload, MinSep(2048, 1))
    assert actual.diagnostics["value"] == pytest.approx(rmse**2, rel=1e-9)


def test_one_band_is_the_identity():
    actual = strategies.optimized_banded(
        workloads.prefix_sum(6), 1, start=strategies.identity(6)
    )
    np.testing.assert_array_equal(actual.matrix.to_dense(), np.eye(6))
    assert actual.diagnostics["optimality_gap"] < 1e-12


def test_warm_start_from_the_optimum_stops_at_once():
    actual = strategies.optimized_banded(
        workloads.prefix_sum(9), 3, start=example(), gap_tolerance=1e-5
    )
    assert actual.diagnostics["num_iterations"] == 0


def test_runs_start_from_the_toeplitz_optimum():
    workload, once = workloads.prefix_sum(30), MinSep(30, 1)
    actual = strategies.optimized_banded(workload, 3, max_iterations=0)
    toeplitz = strategies.optimized_toeplitz(
        workload, once, 3, column_normalized=True, gradient_tolerance=1e-5
    )
    np.testing.assert_allclose(
        actual.rmse(workload, once), toeplitz.rmse(workload, once), rtol=1e-12
    )
    assert not actual.diagnostics["converged"]


def test_invalid_arguments_are_refused():
    workload = workloads.prefix_sum(9)
    with pytest.raises(ValueError, match="bands must be"):
        strategies.optimized_banded(workload, 10)
    with pytest.raises(ValueError, match="objective must be"):
        strategies.optimized_banded(workload, 3, objective="median", start=example())
    with pytest.raises(ValueError, match="must be a FixedEpochOrder"):
        strategies.optimized_banded(
            workload, 3, column_normalized=False, participation=MinSep(3, 3)
        )
    with pytest.raises(ValueError, match="bands must be <= steps_per_epoch = 3"):
        strategies.optimized_banded(
            workload,
            4,
            column_normalized=False,
            participation=FixedEpochOrder(3, 1, 3),
        )
    with pytest.raises(ValueError, match="start must have 9 steps"):
        strategies.optimized_banded(workload, 3, start=strategies.identity(8))
    with pytest.raises(ValueError, match="start must be a banded strategy"):
        strategies.optimized_banded(workload, 3, start=strategies.lambda_cgd(9, 0.5))


def test_an_objective_that_claims_convexity_is_certified():
    claimed = objectives.Objective("mean again", tf.reduce_mean, is_convex=True)
    actual = strategies.optimized_banded(
        workloads.prefix_sum(9), 3, objective=claimed, start=example()
    )
    assert actual.diagnostics["optimality_gap"] < 1e-6


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


@pytest.mark.slow
def test_known_optimum_of_1024_steps():
    workload = workloads.prefix_sum(1024)
    actual = strategies.optimized_banded(workload, 16)
    assert actual.diagnostics["converged"]
    assert actual.diagnostics["optimality_gap"] < 1e-4
    rmse = actual.rmse(workload, MinSep(1024, 1))
    np.testing.assert_allclose(rmse, 6.298836, rtol=1e-6)
