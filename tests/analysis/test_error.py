"""Errors of strategies against the dense factor B = A C^-1."""

import numpy as np
import pytest

from tf_bandmf import strategies, workloads
from tf_bandmf.analysis import error


def all_strategies(n):
    prefix = workloads.prefix_sum(n)
    yield strategies.identity(n)
    yield strategies.lambda_cgd(n, 0.7)
    yield strategies.lambda_cgd(n, 0.7, column_normalized=True)
    yield strategies.bsr(prefix, min(4, n))
    yield strategies.bsr(prefix, min(4, n), column_normalized=True)
    yield strategies.bisr(prefix, min(3, n))
    yield strategies.bisr(prefix, min(3, n), column_normalized=True)


@pytest.mark.slow_cases("13")
@pytest.mark.parametrize("n", [1, 2, 13])
def test_by_recursion_the_error_is_the_row_norm_of_the_factor(n, monkeypatch):
    """The dense way is that of the contracts of matrices."""
    monkeypatch.setattr(error, "_DENSE_STEPS", 0)
    schedule = 0.1 + np.random.default_rng(0).random(n)
    for workload in (
        workloads.prefix_sum(n),
        workloads.momentum_sgd(n, 0.9, 0.99),
        workloads.momentum_sgd(n, 0.5, 1.0, schedule),
        workloads.identity(n),
    ):
        for strategy in all_strategies(n):
            factor = workload.to_dense() @ np.linalg.inv(strategy.matrix.to_dense())
            expected = np.sum(factor**2, axis=1)
            actual = strategy.per_step_squared_error(workload)
            np.testing.assert_allclose(actual, expected, rtol=1e-9)


@pytest.mark.parametrize("lambda_", [0.0, 0.4, 0.9])
def test_lambda_cgd_errors_in_closed_form(lambda_):
    n = 50
    workload = workloads.prefix_sum(n)
    per_step = strategies.lambda_cgd(n, lambda_).per_step_squared_error(workload)
    # arXiv:2601.22334, eq. 17 and eq. 52.
    largest = 1 + (1 - lambda_) ** 2 * (n - 1)
    frobenius = (1 - lambda_) ** 2 * (n - 1) * n / 2 + n
    np.testing.assert_allclose(error.max_error(per_step) ** 2, largest, rtol=1e-12)
    mean = error.root_mean_squared_error(per_step) ** 2
    np.testing.assert_allclose(mean * n, frobenius, rtol=1e-12)


def test_sizes_must_agree():
    with pytest.raises(ValueError, match="5 steps"):
        strategies.identity(5).per_step_squared_error(workloads.prefix_sum(6))
