"""gamma-BIFR between DP-lambda-CGD and BISR, and its one parameter."""

import numpy as np
import pytest
from scipy import special

import tf_bandmf
from tf_bandmf import strategies, workloads
from tf_bandmf.participation import BallsInBins, MinSep
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


@pytest.mark.parametrize("workload", [
    workloads.prefix_sum(15),
    workloads.momentum_sgd(15, 0.4, 0.9),
    workloads.from_inverse(15, [1.0, -0.9, 0.1]),
])  # fmt: skip
def test_special_cases(workload):
    half = strategies.bifr(workload, 6, 0.5).matrix.to_dense()
    root = strategies.bisr(workload, 6).matrix.to_dense()
    np.testing.assert_allclose(half, root, atol=1e-12)
    two = strategies.bifr(workload, 2, 0.6).matrix.to_dense()
    lambda_ = -0.6 * workload.inverse_coefficients[1]
    chain = strategies.lambda_cgd(15, lambda_).matrix.to_dense()
    np.testing.assert_allclose(two, chain, atol=1e-14)
    identity = strategies.bifr(workload, 6, 0.0).matrix.to_dense()
    np.testing.assert_array_equal(identity, np.eye(15))


@pytest.mark.parametrize("beta", [0.0, 0.9])
@pytest.mark.parametrize("objective", ["mean", "max"])
def test_optimized_gamma_beats_its_neighbours(beta, objective):
    workload, participation = workloads.momentum_sgd(60, beta), MinSep(12, 5)
    metric = "rmse" if objective == "mean" else "max_se"
    best = strategies.optimized_bifr(workload, participation, 4, objective)
    value = getattr(best, metric)(workload, participation)
    assert best.diagnostics["converged"]
    for gamma in np.linspace(0.0, 0.99, 100):
        other = strategies.bifr(workload, 4, gamma)
        assert value <= getattr(other, metric)(workload, participation) + 1e-6


def test_gamma_out_of_range_is_refused():
    workload = workloads.prefix_sum(8)
    for gamma in (-0.1, 1.0, float("nan")):
        with pytest.raises(ValueError, match="gamma must be in"):
            strategies.bifr(workload, 2, gamma)
    with pytest.raises(ValueError, match="objective must be"):
        strategies.optimized_bifr(workload, MinSep(2, 2), 2, "median")


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


def test_plan_takes_gamma_or_finds_it():
    data = {"num_examples": 2000, "batch_size": 100, "epochs": 4}
    budget = {"epsilon": 2.0, "delta": 1e-5}
    given = tf_bandmf.plan("bifr:4:0.6", **budget, **data)
    assert given.strategy.parameters["gamma"] == 0.6
    actual = tf_bandmf.plan("bifr:4", **budget, **data)
    assert actual.rmse() < given.rmse()


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
