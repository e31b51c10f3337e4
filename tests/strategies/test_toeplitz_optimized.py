"""Tests optimized Toeplitz strategies, and compares them with other optimizers."""

import numpy as np
import pytest
import scipy.optimize

from tf_bandmf import matrices, strategies, workloads
from tf_bandmf.participation import FixedEpochOrder, MinSep


def test_known_optimum_of_1024_steps():
    workload, once = workloads.prefix_sum(1024), MinSep(1024, 1)
    actual = strategies.optimized_toeplitz(workload, once, 16)
    assert actual.diagnostics["converged"]
    np.testing.assert_allclose(actual.rmse(workload, once), 6.342793, rtol=1e-7)
    # Normalizing the columns of the strategy reduces its error.
    normalized = strategies.optimized_toeplitz(
        workload, once, 16, column_normalized=True
    )
    assert np.ptp(normalized.matrix.column_norms()) < 1e-9
    assert normalized.rmse(workload, once) < actual.rmse(workload, once)


def test_inverse_coefficients_meet_the_peer_s_optimum():
    # The RMSE must be below 13.402731, the RMSE of the library jax_privacy, which uses
    # another bound on the sensitivity.
    n, participation = 1000, MinSep(100, 10)
    workload = workloads.prefix_sum(n)
    actual = strategies.optimized_banded_inverse(workload, participation, 4)
    # This is the name by which `tf_bandmf.plan` knows the family.
    assert actual.family == "bandinv"
    assert actual.diagnostics["converged"]
    rmse = actual.rmse(workload, participation)
    assert rmse < 13.402731
    assert rmse < 0.5 * strategies.bisr(workload, 4).rmse(workload, participation)
    # The sensitivity must be at least the norm of the sum of the columns 0, 100, ...
    column = actual.core.toeplitz_column()
    response = sum(np.pad(column, (j, 0))[:n] for j in range(0, n, 100))
    reached = actual.sensitivity(participation).value
    assert reached >= np.linalg.norm(response) * (1 - 1e-12)


def searched(workload, participation, bands):
    """Returns the smallest log RMSE that a gradient-free optimizer finds."""

    def error(x):
        inner = matrices.ToeplitzBanded(np.r_[1.0, x], workload.num_steps)
        strategy = strategies.Strategy("any", matrices.Inverse(inner))
        return np.log(strategy.rmse(workload, participation))

    start = strategies.bisr(workload, bands).core.inner.coefficients[1:]
    return scipy.optimize.minimize(error, start, method="Nelder-Mead").fun


SIGNS = [
    # In these cases, the RMSE of the best nonnegative column is 1.1 to 1.4 times that
    # of BISR, so an optimization must allow coefficients of both signs.
    ("sgd:momentum=0.9", 16, 8, 3),
    ("prefix", 16, 4, 4),
    ("sgd:momentum=0.9,decay=0.99", 64, 8, 8),
]


@pytest.mark.parametrize(("name", "n", "b", "bands"), SIGNS)
@pytest.mark.parametrize("fixed_order", [True, False])
def test_inverse_coefficients_are_never_worse_than_their_start(
    name, n, b, bands, fixed_order
):
    workload, k = workloads.resolve(name, n), n // b
    participation = FixedEpochOrder(b, 1, k) if fixed_order else MinSep(b, k)
    actual = strategies.optimized_banded_inverse(workload, participation, bands)
    start = strategies.bisr(workload, bands)
    rmse = actual.rmse(workload, participation)
    assert rmse < 0.99 * start.rmse(workload, participation)
    if not fixed_order:
        return
    assert actual.diagnostics["converged"]
    assert actual.sensitivity(participation).is_exact
    if bands > 4 or n > 32:
        return

    assert np.log(rmse) <= searched(workload, participation, bands) + 1e-6
