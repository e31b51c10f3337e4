"""Columns for many steps from those for fewer."""

import numpy as np
import pytest

from tf_bandmf import matrices, strategies, workloads
from tf_bandmf.optimize import banded_matrices, continuation
from tf_bandmf.participation import MinSep
from tf_bandmf.strategies import banded

FEW, BANDS = 512, 4


@pytest.fixture(scope="module")
def long_runs():
    """From the Toeplitz optimum: after no steps, after five and the optimum."""
    workload = workloads.prefix_sum(4 * FEW)
    start = strategies.optimized_banded(workload, BANDS, max_iterations=0)
    five = strategies.optimized_banded(workload, BANDS, start=start, max_iterations=5)
    return start, five, strategies.optimized_banded(workload, BANDS, start=start)


# A problem stays traced until the next one: this is the one that long runs begin with.
@pytest.fixture(scope="module")
def columns(long_runs):
    actual = strategies.optimized_banded(
        workloads.prefix_sum(FEW), BANDS, gap_tolerance=1e-6
    )
    return matrices.columns_from_rows(actual.matrix.as_rows())


def rmse(columns):
    n = columns.shape[1]
    rows = banded_matrices.rows_from_columns(columns).numpy()
    strategy = strategies.Strategy("banded", matrices.RowBanded(rows), {}, {})
    return strategy.rmse(workloads.prefix_sum(n), MinSep(n, 1))


@pytest.mark.slow_cases("512")
@pytest.mark.parametrize("num_steps", [FEW, FEW + 1, 1500, 2048])
def test_columns_have_norm_1_and_end_as_those_that_are_known(columns, num_steps):
    actual = continuation.continued(columns, num_steps)
    assert actual.shape == (BANDS, num_steps)
    np.testing.assert_allclose(np.linalg.norm(actual, axis=0), 1.0, rtol=1e-12)
    same = FEW // 2
    np.testing.assert_allclose(actual[:, -same:], columns[:, -same:], rtol=1e-12)
    # Nothing below the last row.
    assert not np.any(actual[1:, -1])


def test_continued_columns_are_near_the_optimum(columns, long_runs):
    n = 4 * FEW
    toeplitz, _, best = long_runs
    start = toeplitz.rmse(workloads.prefix_sum(n), MinSep(n, 1))
    least = best.rmse(workloads.prefix_sum(n), MinSep(n, 1))
    actual = rmse(continuation.continued(columns, n))
    assert actual - least < 0.3 * (start - least)
    assert actual < least * (1.0 + 3e-4)


@pytest.mark.slow
def test_long_runs_start_from_shorter_ones(columns, long_runs, monkeypatch):
    workload, once = workloads.prefix_sum(2048), MinSep(2048, 1)
    _, plain, _ = long_runs
    monkeypatch.setattr(banded, "_MOST_AT_ONCE", 1024)
    actual = strategies.optimized_banded(workload, BANDS, max_iterations=5)
    assert actual.rmse(workload, once) < plain.rmse(workload, once)
    assert actual.diagnostics["optimality_gap"] < plain.diagnostics["optimality_gap"]


@pytest.mark.slow_cases("schedule")
@pytest.mark.parametrize(
    "workload",
    [
        workloads.momentum_sgd(600, 0.9),
        workloads.prefix_sum(600, np.linspace(1.0, 0.1, 600)),
    ],
    ids=["momentum", "schedule"],
)
def test_other_workloads_start_from_the_toeplitz_optimum(workload, monkeypatch):
    plain = strategies.optimized_banded(workload, 2, max_iterations=0)
    monkeypatch.setattr(banded, "_MOST_AT_ONCE", 256)
    actual = strategies.optimized_banded(workload, 2, max_iterations=0)
    np.testing.assert_array_equal(actual.matrix.as_rows(), plain.matrix.as_rows())
