"""BLT strategies optimized for amplification have less error than other families."""

import itertools

import numpy as np
import pytest
from small_plans import small_plan

import tf_bandmf
from tf_bandmf import strategies, workloads
from tf_bandmf.participation import BallsInBins, MinSep

BINS = BallsInBins(1600, 100, 6)
WORKLOAD = workloads.prefix_sum(96)


def small(mechanism):
    """Makes a plan of only six steps, so a simulation with dense matrices is fast."""
    return tf_bandmf.plan(
        mechanism, sampling=BallsInBins(12, 4, 2), epsilon=1.0, delta=0.02
    )


@pytest.fixture(scope="module")
def amplified_plan():
    return small("amplified:1")


def test_delta_and_sensitivity_by_brute_force(amplified_plan):
    plan = amplified_plan
    n, b, epsilon, delta = 6, 3, plan.epsilon, plan.delta
    participation = plan.participation
    matrix, sensitivity = plan.strategy.matrix, plan.strategy.sensitivity(participation)
    dense = matrix.to_dense()
    worst = max(
        np.linalg.norm(dense[:, j::b] @ np.array(signs))
        for j in range(b)
        for signs in itertools.product((-1, 1), repeat=2)
    )
    np.testing.assert_allclose(sensitivity.value, worst, rtol=1e-12)
    noise = plan.noise_multiplier * sensitivity.value
    means = np.stack([dense[:, j::b].sum(axis=1) for j in range(b)])
    draws = 400_000
    generator = np.random.default_rng(1)
    actual = []
    for add in (False, True):
        x = noise * generator.normal(size=(draws, n))
        if not add:
            x += means[generator.integers(0, b, draws)]
        exponents = (x @ means.T - 0.5 * np.sum(means**2, axis=1)) / noise**2
        losses = np.log(np.mean(np.exp(exponents), axis=1))
        losses = -losses if add else losses
        values = np.maximum(0.0, -np.expm1(epsilon - losses))
        actual.append((values.mean(), values.std() / np.sqrt(draws)))
    largest, error = max(actual)
    assert abs(largest - delta) < 4.0 * error + 0.03 * delta


def test_without_amplification_it_is_the_optimum_for_the_sensitivity():
    participation = MinSep(16, 6)
    actual = strategies.optimized_amplified(WORKLOAD, participation, 2)
    other = strategies.blt(WORKLOAD, participation, 2)
    assert actual.family == "amplified"
    np.testing.assert_array_equal(actual.matrix.to_dense(), other.matrix.to_dense())


def test_without_a_budget_it_is_refused():
    with pytest.raises(ValueError, match="needs a budget"):
        tf_bandmf.compare(["amplified:4"], sampling=BINS)
    with pytest.raises(ValueError, match="Pass epsilon instead"):
        tf_bandmf.plan("amplified:4", sampling=BINS, delta=1e-5, noise_multiplier=1.0)
    with pytest.raises(ValueError, match="delta must be in"):
        strategies.optimized_amplified(WORKLOAD, BINS, 1, epsilon=1.0, delta=0.0)


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "limit"), [(1.0, 22.54), (8.0, 4.47)])
def test_reference_points(epsilon, limit):
    """A BLT optimized for the privacy budget has a smaller RMSE than that of `blt`.

    The RMSE of `blt` is 27.42 for epsilon = 1, and 4.588 for epsilon = 8.
    """
    plan = small_plan(
        "amplified:4", 64 * 128, 128, 8, sampling="balls-in-bins", epsilon=epsilon
    )
    assert plan.rmse() <= limit
