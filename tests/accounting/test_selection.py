"""Tests the privacy cost of releasing the best of a random number of runs."""

import functools
import itertools
import math

import floors
import numpy as np
import pytest
import scipy.stats
from dp_accounting import GaussianDpEvent, rdp
from dp_accounting.dp_event import RepeatAndSelectDpEvent

from tf_bandmf.accounting import gaussian, selection

SHAPES = (0.0, 0.5, 1.0, 2.0)


@pytest.mark.slow_cases("0.5")
@pytest.mark.parametrize("shape", SHAPES)
def test_draws_have_the_distribution_and_the_mean(shape):
    """K has a truncated negative binomial distribution (arXiv:2110.03620, Def. 1)."""
    rng, mean, count = np.random.default_rng(3), 6.0, 20_000
    draws = np.array([selection.draw_number(mean, shape, rng) for _ in range(count)])
    assert abs(draws.mean() - mean) < 5.0 * draws.std() / math.sqrt(count)
    k = np.arange(1, 7)
    assert draws.min() == 1
    gamma = selection.gamma_of_mean(mean, shape)
    law = scipy.stats.logser(1.0 - gamma)
    if shape > 0.0:
        law = scipy.stats.nbinom(shape, gamma)
    expected = law.pmf(k) / law.sf(0)
    assert selection.draw_number(1.0, shape, rng) == 1
    shares = np.mean(draws == k[:, None], axis=1)
    assert np.all(np.abs(shares - expected) < 5.0 * np.sqrt(expected / count))


@pytest.mark.parametrize("noise", [0.3, 3.0, 50.0])
def test_renyi_dp_is_never_better(noise):
    """Epsilon is below dp-accounting's, which uses arXiv:2110.03620, Theorem 2."""
    at = functools.partial(gaussian.gaussian_epsilon, noise)
    orders, run = 1.0 + np.geomspace(1e-3, 500.0, 100), GaussianDpEvent(noise)
    for mean, shape in itertools.product((1.5, 10.0, 300.0), (0.0, 1.0, 3.0)):
        best = RepeatAndSelectDpEvent(run, mean, shape)
        renyi = rdp.RdpAccountant(orders).compose(best)
        for delta in (1e-3, 1e-12):
            actual = selection.profile_epsilon(at, mean, shape, delta)
            assert actual < renyi.get_epsilon(delta)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_pure_mechanism_pays_2_plus_eta_times_epsilon(shape):
    """If each run is epsilon-DP, selecting the best one is (2 + eta) epsilon-DP.

    Here, eta is the shape of the distribution of the number of runs. See
    arXiv:2110.03620, after Theorem 2.
    """
    actual = selection.profile_epsilon(lambda delta: 0.7, 20.0, shape, 1e-12)
    assert actual == pytest.approx((2.0 + shape) * 0.7, rel=1e-6)


@pytest.mark.slow_cases(
    "1.0-0.0-20.0",
    "1.0-0.0-1.0",
    "10.0-1.0-20.0",
    "10.0-1.0-1.0",
    "1.0-0.0-0.05",
    "10.0-1.0-0.05",
)
@pytest.mark.parametrize("noise", [0.05, 1.0, 20.0])
@pytest.mark.parametrize("mean, shape", [(1.0, 0.0), (10.0, 1.0), (100.0, 2.0)])
@pytest.mark.invariant(12)
def test_no_epsilon_is_below_its_floor(mean, shape, noise):
    """At the computed epsilon, the true delta does not exceed the requested one.

    The released value is the best of K Gaussian answers, and K is random. The true
    delta is computed with 60 digits.
    """
    at = functools.partial(gaussian.gaussian_epsilon, noise)
    for delta in (1e-3, 1e-15):
        epsilon = selection.profile_epsilon(at, mean, shape, delta)
        assert floors.best_of_runs(noise, mean, shape, epsilon) <= delta


def test_epsilons_whose_exponential_overflows_are_numbers():
    actual = selection.profile_epsilon(lambda delta: 2000.0, 3.0, 1.0, 1e-5)
    assert 2000.0 < actual < 6001.0
