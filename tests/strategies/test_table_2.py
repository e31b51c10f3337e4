"""Reproduces Table 2 of arXiv:2306.08153: prefix sum, n = 2052, k = 6, b = 342.

All errors are divided by that of the dense optimum under fixed epoch order. The
optimization takes minutes, so the test is marked as slow.
"""

import functools

import pytest

from tf_bandmf import strategies, workloads
from tf_bandmf.participation import FixedEpochOrder, MinSep
from tf_bandmf.strategies.banded import optimized_banded
from tf_bandmf.strategies.multi_epoch import dense

N, B = 2052, 342
FIXED, MIN_SEP, ONCE = FixedEpochOrder(B, 1, 6), MinSep(B), MinSep(N, 1)
WORKLOAD = workloads.prefix_sum(N)

equal = functools.partial(optimized_banded, WORKLOAD)
free = functools.partial(equal, column_normalized=False, participation=FIXED)


@functools.cache
def optimum():
    return dense(WORKLOAD, FIXED, tolerance=1e-5)


def optimum_of_equal_norms():
    return dense(WORKLOAD, FIXED, equal_column_norms=True, tolerance=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "build, sensitivities, errors",
    [
        (lambda: strategies.binary_tree(N), "0.32 1.00", "1.53 1.53"),
        (lambda: strategies.identity(N), "0.41 1.00", "9.63 9.63"),
        (optimum, "0.50 1.15", "1.00 1.15"),
        (optimum_of_equal_norms, "0.41 1.13", "1.01 1.14"),
        (lambda: equal(128), "0.41 1.00", "1.27 1.27"),
        (lambda: equal(342), "0.41 1.00", "1.05 1.05"),
        (lambda: free(128), "0.52 1.04", "1.23 1.29"),
        (lambda: free(342), "0.52 1.04", "1.04 1.08"),
    ],
)
def test_table_2(build, sensitivities, errors):
    """Reproduces columns A and B of arXiv:2306.08153, Table 2, to two decimals."""
    strategy = build()
    scale = strategy.sensitivity(FIXED)
    assert scale.is_exact
    actual = [strategy.sensitivity(p).value / scale.value for p in (ONCE, MIN_SEP)]
    assert " ".join(f"{value:.2f}" for value in actual) == sensitivities
    base = optimum().rmse(WORKLOAD, FIXED)
    actual = [strategy.rmse(WORKLOAD, p) / base for p in (FIXED, MIN_SEP)]
    assert " ".join(f"{value:.2f}" for value in actual) == errors
