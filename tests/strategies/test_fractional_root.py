"""Tests gamma-BIFR, which generalizes BISR, and the choice of gamma."""

import numpy as np
import pytest
from scipy import special

import tf_bandmf
from tf_bandmf import strategies, workloads
from tf_bandmf.participation import BallsInBins
from tf_bandmf.strategies import registry


@pytest.mark.parametrize(
    ("gamma", "alpha", "beta"), [(0.3, 1.0, 0.0), (0.7, 0.98, 0.5)]
)
def test_coefficients_are_the_binomial_series(gamma, alpha, beta):
    n, bands = 12, 6
    k = np.arange(n)
    binomial = special.binom(gamma, k) * (-1.0) ** k
    expected = np.convolve(binomial * alpha**k, binomial * beta**k)[:bands]
    strategy = strategies.bifr(workloads.momentum_sgd(n, beta, alpha), bands, gamma)
    np.testing.assert_allclose(
        strategy.matrix.inner.coefficients, expected, rtol=1e-11, atol=1e-14
    )


def test_names_with_two_values():
    assert registry.parse("bifr:4:0.6") == ("bifr", {"bands": 4, "gamma": 0.6})
    assert registry.parse("bifr:4:normalized")[1] == {
        "bands": 4,
        "column_normalized": True,
    }
    with pytest.raises(ValueError, match="two values"):
        registry.parse("bifr:4:0.6:1")
    with pytest.raises(ValueError, match="one value"):
        registry.parse("bisr:4:0.6")


def test_amplified_gamma_is_smaller_and_better_than_the_unamplified_one():
    participation = BallsInBins(2000, 100, 4)
    workload = workloads.prefix_sum(80)
    plan = tf_bandmf.plan("bifr:4", sampling=participation, epsilon=2.0, delta=1e-5)
    gamma = strategies.optimized_bifr(workload, participation, 4).parameters["gamma"]
    assert plan.strategy.parameters["gamma"] < gamma
    for value in (gamma, 0.5):
        name = f"bifr:4:{value:.8g}"
        other = tf_bandmf.plan(name, sampling=participation, epsilon=2.0, delta=1e-5)
        assert plan.rmse() < other.rmse()
