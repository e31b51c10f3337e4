"""Identity, DP-lambda-CGD, BSR and BISR against the formulas of their papers."""

import numpy as np
import pytest
from scipy import special

from tf_bandmf import strategies, workloads
from tf_bandmf.participation import MinSep


def r(k):
    return np.abs(special.binom(-0.5, np.arange(k)))


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.0), (1.0, 0.9), (0.99, 0.5)])
def test_bsr_coefficients(alpha, beta):
    # arXiv:2405.13763: c_k = sum_i alpha^(k-i) r_(k-i) r_i beta^i.
    n, bands = 12, 7
    expected = [
        sum(alpha ** (k - i) * r(n)[k - i] * r(n)[i] * beta**i for i in range(k + 1))
        for k in range(bands)
    ]
    strategy = strategies.bsr(workloads.momentum_sgd(n, beta, alpha), bands)
    np.testing.assert_allclose(strategy.matrix.coefficients, expected, rtol=1e-12)


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.0), (1.0, 0.9), (0.99, 0.5)])
def test_bisr_coefficients(alpha, beta):
    # arXiv:2505.12128, Lemma 1: r~_k = -r_k / (2k - 1).
    n, bands = 12, 5
    k = np.arange(n)
    r_tilde = -r(n) / (2 * k - 1)
    expected = [
        sum(
            r_tilde[j] * beta**j * r_tilde[i - j] * alpha ** (i - j)
            for j in range(i + 1)
        )
        for i in range(bands)
    ]
    strategy = strategies.bisr(workloads.momentum_sgd(n, beta, alpha), bands)
    actual = strategy.matrix.inner.coefficients
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.0), (0.95, 0.4)])
def test_full_square_roots_are_roots_of_the_workload(alpha, beta):
    n = 10
    workload = workloads.momentum_sgd(n, beta, alpha)
    for strategy in (strategies.bsr(workload, n), strategies.bisr(workload, n)):
        dense = strategy.matrix.to_dense()
        np.testing.assert_allclose(dense @ dense, workload.to_dense(), atol=1e-12)


def test_closed_form_and_general_root_agree_for_a_custom_workload():
    n = 9
    known = workloads.momentum_sgd(n, 0.5, 0.9)
    custom = workloads.from_inverse(n, known.inverse_coefficients)
    for family in (strategies.bsr, strategies.bisr):
        np.testing.assert_allclose(
            family(custom, 4).matrix.to_dense(),
            family(known, 4).matrix.to_dense(),
            atol=1e-13,
        )


def test_lambda_cgd_matrices():
    strategy = strategies.lambda_cgd(4, 0.5)
    powers = 0.5 ** np.subtract.outer(np.arange(4), np.arange(4))
    np.testing.assert_allclose(strategy.matrix.to_dense(), np.tril(powers))


@pytest.mark.parametrize("lambda_", [0.3, 0.9])
def test_normalized_lambda_cgd_has_the_column_norms_of_the_paper(lambda_):
    # arXiv:2601.22334, eq. 40 with one-based columns.
    n = 11
    j = np.arange(1, n + 1)
    norms = np.sqrt((1 - lambda_ ** (2 * (n - j + 1))) / (1 - lambda_**2))
    strategy = strategies.lambda_cgd(n, lambda_, column_normalized=True)
    np.testing.assert_allclose(1.0 / strategy.matrix.scale, norms, rtol=1e-12)
    assert strategy.is_column_normalized


@pytest.mark.parametrize(("n", "b", "k"), [(60, 12, 5), (200, 200, 1), (64, 8, 8)])
def test_optimized_lambda_beats_its_neighbours(n, b, k):
    workload, participation = workloads.prefix_sum(n), MinSep(b, k)
    for objective in ("mean", "max"):
        best = strategies.optimized_lambda_cgd(workload, participation, objective)
        metric = "rmse" if objective == "mean" else "max_se"
        value = getattr(best, metric)(workload, participation)
        for lambda_ in np.linspace(0.0, 0.999, 200):
            other = strategies.lambda_cgd(n, lambda_)
            assert value <= getattr(other, metric)(workload, participation) + 1e-9


def test_memory_and_regenerations():
    workload = workloads.prefix_sum(20)
    bsr, bisr = strategies.bsr(workload, 5), strategies.bisr(workload, 5)
    assert (bsr.memory_vectors, bsr.regenerations_per_step) == (4, 0)
    assert (bisr.memory_vectors, bisr.regenerations_per_step) == (0, 4)
    identity = strategies.identity(20)
    assert (identity.memory_vectors, identity.regenerations_per_step) == (0, 0)
    dense = strategies.dense(workload, MinSep(5))
    assert (dense.memory_vectors, dense.regenerations_per_step) == (0, 19)


def test_invalid_strategies_are_refused():
    """By name; numbers of every kind are those of tests/fuzz."""
    workload = workloads.prefix_sum(5)
    with pytest.raises(ValueError, match="lambda must be in"):
        strategies.lambda_cgd(5, 1.0)
    for family in (strategies.bsr, strategies.bisr):
        with pytest.raises(ValueError, match="bands must be a whole number from 1"):
            family(workload, 6)
    with pytest.raises(ValueError, match="objective must be"):
        strategies.optimized_lambda_cgd(workload, MinSep(5, 1), "median")
