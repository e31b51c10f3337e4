"""Columns that were optimized for few steps are continued to many steps."""

from tf_bandmf import matrices, strategies, workloads
from tf_bandmf.optimize import banded_matrices, continuation
from tf_bandmf.optimize.options import Options
from tf_bandmf.participation import MinSep
from tf_bandmf.strategies import banded

FEW, BANDS = 512, 4


def optimum(num_steps, **options):
    """Returns the optimal columns for prefix sums, from the default start."""
    workload = workloads.prefix_sum(num_steps)
    return banded.optimal_columns(workload, BANDS, "mean", Options(**options), True)[0]


def rmse(columns):
    n = columns.shape[1]
    rows = banded_matrices.rows_from_columns(columns).numpy()
    strategy = strategies.Strategy("banded", matrices.RowBanded(rows), {}, {})
    return strategy.rmse(workloads.prefix_sum(n), MinSep(n, 1))


def test_continued_columns_are_near_the_optimum():
    n = 4 * FEW
    start, least = rmse(optimum(n, max_iterations=0)), rmse(optimum(n))
    actual = rmse(continuation.continued(optimum(FEW, gap_tolerance=1e-6), n))
    assert actual - least < 0.3 * (start - least)
    assert actual < least * (1.0 + 3e-4)
