"""arXiv:2306.08153, Table 2: n = 2052 steps, k = 6, b = 342, prefix sum.

Errors are relative to the dense optimum under fixed epoch order. Minutes of optimization:
run with `-m slow`.
"""

import numpy as np
import pytest

from tf_bandmf import strategies, workloads
from tf_bandmf.participation import FixedEpochOrder, MinSep
from tf_bandmf.strategies.multi_epoch import dense

N, B = 2052, 342
FIXED, MIN_SEP, ONCE = FixedEpochOrder(B, 1, 6), MinSep(B), MinSep(N, 1)
WORKLOAD = workloads.prefix_sum(N)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def optimum():
    return dense(WORKLOAD, FIXED, tolerance=1e-5)


def check(strategy, optimum, sensitivities, errors):
    """Compares k = 1 and b-min-sep sensitivity and columns A and B, two digits."""
    scale = strategy.sensitivity(FIXED)
    assert scale.is_exact
    actual = [strategy.sensitivity(p).value / scale.value for p in (ONCE, MIN_SEP)]
    assert [f"{value:.2f}" for value in actual] == sensitivities
    base = optimum.rmse(WORKLOAD, FIXED)
    actual = [strategy.rmse(WORKLOAD, p) / base for p in (FIXED, MIN_SEP)]
    assert [f"{value:.2f}" for value in actual] == errors


def test_optimal_tree_aggregation(optimum):
    check(strategies.binary_tree(N), optimum, ["0.32", "1.00"], ["1.53", "1.53"])


def test_dp_sgd(optimum):
    check(strategies.identity(N), optimum, ["0.41", "1.00"], ["9.63", "9.63"])


def test_dense_without_equal_norms(optimum):
    check(optimum, optimum, ["0.50", "1.15"], ["1.00", "1.15"])
    assert not optimum.sensitivity(MIN_SEP).is_exact
    assert optimum.diagnostics["optimality_gap"] <= 1e-5


def test_dense_with_equal_norms(optimum):
    strategy = dense(WORKLOAD, FIXED, equal_column_norms=True, tolerance=1e-5)
    check(strategy, optimum, ["0.41", "1.13"], ["1.01", "1.14"])


@pytest.mark.parametrize(("bands", "error"), [(128, "1.27"), (342, "1.05")])
def test_banded_with_equal_norms(optimum, bands, error):
    from tf_bandmf.strategies.banded import optimized_banded

    strategy = optimized_banded(WORKLOAD, bands)
    check(strategy, optimum, ["0.41", "1.00"], [error, error])
    np.testing.assert_allclose(strategy.sensitivity(MIN_SEP).value, np.sqrt(6.0))


@pytest.mark.parametrize(
    ("bands", "errors"), [(128, ["1.23", "1.29"]), (342, ["1.04", "1.08"])]
)
def test_banded_without_equal_norms(optimum, bands, errors):
    from tf_bandmf.strategies.banded import optimized_banded

    strategy = optimized_banded(
        WORKLOAD, bands, column_normalized=False, participation=FIXED
    )
    check(strategy, optimum, ["0.52", "1.04"], errors)
    assert strategy.sensitivity(MIN_SEP).is_exact
