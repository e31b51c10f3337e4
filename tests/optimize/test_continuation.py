"""Columns optimized for a few steps can be extended to a longer run."""

import pytest

from tf_bandmf import matrices, strategies, workloads
from tf_bandmf.optimize import banded_matrices, continuation
from tf_bandmf.participation import MinSep

FEW, BANDS = 512, 4


@pytest.fixture(scope="module")
def long_runs():
    """Returns the strategy at the Toeplitz start, after five iterations, and at the end."""
    workload = workloads.prefix_sum(4 * FEW)
    start = strategies.optimized_banded(workload, BANDS, max_iterations=0)
    five = strategies.optimized_banded(workload, BANDS, start=start, max_iterations=5)
    return start, five, strategies.optimized_banded(workload, BANDS, start=start)


# Only the most recent optimization problem stays traced, and tracing again takes time.
# Therefore, this fixture requests `long_runs`, whose problems are solved before its own.
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


def test_continued_columns_are_near_the_optimum(columns, long_runs):
    n = 4 * FEW
    toeplitz, _, best = long_runs
    start = toeplitz.rmse(workloads.prefix_sum(n), MinSep(n, 1))
    least = best.rmse(workloads.prefix_sum(n), MinSep(n, 1))
    actual = rmse(continuation.continued(columns, n))
    assert actual - least < 0.3 * (start - least)
    assert actual < least * (1.0 + 3e-4)
