"""Tests the matrices and optima of buffered linear Toeplitz (BLT) strategies."""

import numpy as np
import pytest

from tf_bandmf import matrices, strategies, workloads
from tf_bandmf.participation import MinSep

DECAYS, INVERSE_DECAYS = np.array([0.95, 0.6, 0.2]), np.array([0.8, 0.4, 0.05])


def test_the_matrix_is_the_one_of_its_output_scales():
    n = 12
    matrix = matrices.BufferedToeplitz(DECAYS, INVERSE_DECAYS, n)
    powers = DECAYS[:, None] ** np.arange(n - 1)
    column = np.r_[1.0, matrix.output_scales @ powers]
    np.testing.assert_allclose(matrix.toeplitz_column(), column)
    # The generating function of the column is a quotient of two products of linear
    # factors.
    quotient = np.convolve(column, np.poly(matrix.decays))[:n]
    np.testing.assert_allclose(
        quotient, np.pad(np.poly(matrix.inverse_decays), (0, n - 4)), atol=1e-12
    )
    assert np.all(matrix.output_scales > 0) and matrix.output_scales.sum() < 1
    assert np.all(matrix.inverse_output_scales < 0)


def test_it_reaches_the_value_of_jax_privacy():
    """With two buffers, the RMSE is 12.193852, as in the library jax_privacy."""
    workload, participation = workloads.prefix_sum(1000), MinSep(100)
    strategy = strategies.blt(workload, participation, 2)
    np.testing.assert_allclose(
        strategy.rmse(workload, participation), 12.193852, atol=1e-5
    )
    assert strategy.sensitivity(participation).is_exact
    assert strategy.diagnostics["converged"]
    assert strategy.memory_vectors == 2
    assert strategy.regenerations_per_step == 0
    # A third buffer would not reduce the error, so the optimization omits it.
    assert strategies.blt(workload, participation, 3).memory_vectors == 2


def test_more_buffers_are_better_for_one_participation_and_near_the_optimum():
    n = 128
    workload, once = workloads.prefix_sum(n), MinSep(n, 1)
    errors = [strategies.blt(workload, once, d).rmse(workload, once) for d in (1, 2, 3)]
    assert errors[0] > errors[1] > errors[2]
    optimum = strategies.dense(workload, once).rmse(workload, once)
    assert optimum < errors[2] < 1.05 * optimum
    # Of all Toeplitz factorizations, the square root has the smallest MaxSE.
    best = strategies.bsr(workload, n).max_se(workload, once)
    actual = strategies.blt(workload, once, 3, "max").max_se(workload, once)
    assert best <= actual < 1.02 * best


@pytest.mark.parametrize(
    ("decays", "inverse_decays"),
    [
        ([0.5], [0.6]),
        ([1.0], [0.5]),
        ([0.5], [-0.1]),
        ([0.9, 0.8], [0.7, 0.6]),
        ([0.9], [0.8, 0.7]),
        ([], []),
        ([np.nan], [0.5]),
    ],
)
def test_decays_that_are_not_interlaced_are_refused(decays, inverse_decays):
    with pytest.raises(ValueError, match="decays"):
        matrices.BufferedToeplitz(np.array(decays), np.array(inverse_decays), 5)


def test_a_decay_next_to_one_stays_below_one_in_float32():
    matrix = matrices.BufferedToeplitz([1.0 - 1e-9], [0.5], 10).in_float32()
    assert matrix.decays[0] == 1.0 - 2.0**-24
    assert np.array_equal(matrix.in_float32().decays, matrix.decays)
