"""Optimized banded strategies: known optima, the convex problem, certificates."""

import numpy as np
import pytest

from tf_bandmf import matrices, strategies, workloads
from tf_bandmf.optimize import banded
from tf_bandmf.optimize.options import Options
from tf_bandmf.participation import MinSep

# The optimum of arXiv:2405.15913, Example B.1. Column j has the nonzero entries of
# column j of C.
EXAMPLE = [
    [0.740, 0.822, 0.876, 0.821, 0.855, 0.882, 0.892, 0.936, 1.000],
    [0.500, 0.492, 0.395, 0.462, 0.442, 0.403, 0.409, 0.353, 0.000],
    [0.450, 0.286, 0.278, 0.335, 0.272, 0.243, 0.194, 0.000, 0.000],
]


def mean_error(strategy, workload):
    return np.mean(strategy.per_step_squared_error(workload))


@pytest.fixture(scope="module")
def optimum():
    """Optimizes the problem of Example B.1."""
    return strategies.optimized_banded(workloads.prefix_sum(9), MinSep(3), 3)


def test_example_b1_of_scaling_up(optimum):
    columns = matrices.columns_from_rows(optimum.matrix.rows)
    np.testing.assert_allclose(columns, EXAMPLE, atol=6e-4)
    np.testing.assert_allclose(optimum.matrix.column_norms(), 1.0, rtol=1e-14)
    actual = optimum.diagnostics
    assert actual["converged"] is True
    assert actual["objective"] == "mean"
    assert 0.0 <= actual["optimality_gap"] < 1e-5
    assert actual["num_iterations"] > 0 and actual["seconds"] > 0.0
    mean = mean_error(optimum, workloads.prefix_sum(9))
    np.testing.assert_allclose(actual["value"], mean, rtol=1e-12)


def test_the_stated_gap_is_above_the_true_one(optimum):
    """The stated optimality gap is valid even at a start far from the optimum."""
    workload = workloads.prefix_sum(9)
    start = strategies.bsr(workload, 3, column_normalized=True).matrix.as_rows()
    columns = matrices.columns_from_rows(start)
    _, actual = banded.optimize(workload, "mean", columns, Options(max_iterations=0))
    true_gap = 1.0 - mean_error(optimum, workload) / actual.value
    assert 1e-3 < true_gap <= actual.optimality_gap + 1e-9


def test_an_unknown_objective_is_refused():
    with pytest.raises(ValueError, match="objective must be one of mean, max"):
        strategies.optimized_banded(
            workloads.prefix_sum(9), MinSep(3), 3, objective="last"
        )
