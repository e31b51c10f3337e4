"""Dominating privacy losses of mechanisms of which a profile is known."""

import math

import numpy as np
import pytest
from dp_accounting.pld import common, privacy_loss_distribution

from tf_bandmf.accounting import gaussian, profiles

INTERVAL = 1e-3
EPSILONS = np.array([0.0, 0.01, 0.5, 1.0, 3.0, 8.0])


@pytest.mark.parametrize("noise", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("count", [1, 4])
def test_a_gaussian_mechanism_by_its_profile_is_itself(noise, count):
    loss = profiles.dominating_loss(profiles.gaussian_profile(noise), INTERVAL)
    actual = loss.self_compose(count)
    for epsilon in EPSILONS:
        expected = gaussian.gaussian_delta(noise / math.sqrt(count), epsilon)
        delta = actual.get_delta_for_epsilon(float(epsilon))
        assert expected <= delta <= expected * 1.01 + 1e-12


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-5), (2.0, 0.0), (8.0, 1e-3)])
def test_a_pair_composes_as_the_worst_mechanism_that_has_it(epsilon, delta):
    profile = profiles.pair_profile(epsilon, delta)
    loss = profiles.dominating_loss(profile, INTERVAL, [epsilon])
    worst = privacy_loss_distribution.from_privacy_parameters(
        common.DifferentialPrivacyParameters(epsilon, delta),
        value_discretization_interval=INTERVAL,
    )
    for count in (1, 3):
        for tried in EPSILONS:
            expected = worst.self_compose(count).get_delta_for_epsilon(float(tried))
            actual = loss.self_compose(count).get_delta_for_epsilon(float(tried))
            assert (
                expected - 1e-12
                <= actual
                <= expected + 2e-3 * (delta + (tried < 8)) + 1e-14
            )


@pytest.mark.parametrize("rho", [1e-4, 0.1, 2.0, 30.0])
def test_zcdp_is_above_the_gaussian_mechanism_and_below_its_closed_form(rho):
    epsilons = rho + np.array([0.1, 1.0, 3.0, 6.0]) * math.sqrt(rho)
    profile = profiles.zcdp_profile(rho)
    loss = profiles.dominating_loss(profile, INTERVAL * math.sqrt(rho))
    for epsilon, delta in zip(epsilons, profile(epsilons)):
        least = gaussian.gaussian_delta(1.0 / math.sqrt(2.0 * rho), epsilon)
        assert least <= delta
        # Bun and Steinke, 2016, arXiv:1605.02065, Proposition 1.3.
        assert delta <= math.exp(-((epsilon - rho) ** 2) / (4.0 * rho))
        actual = loss.get_delta_for_epsilon(float(epsilon))
        assert least <= actual <= delta * (1.0 + 1e-3) + 1e-12


@pytest.mark.parametrize("rho", [0.1, 2.0])
def test_no_order_converts_better(rho):
    orders = 1.0 + np.geomspace(1e-6, 1e6, 200_001)
    for epsilon in (0.0, 0.5, 3.0, 10.0):
        exponents = (
            (orders - 1.0) * (rho * orders - epsilon)
            + orders * np.log1p(-1.0 / orders)
            - np.log(orders - 1.0)
        )
        expected = min(1.0, math.exp(exponents.min()))
        actual = profiles.zcdp_profile(rho)(np.array([epsilon]))[0]
        assert actual == pytest.approx(expected, rel=1e-6)


def test_neighbors_of_neighbors_of_a_gaussian_mechanism_are_bounded():
    doubled = profiles.twice(profiles.gaussian_profile(2.0))(EPSILONS)
    for epsilon, delta in zip(EPSILONS, doubled):
        assert delta >= gaussian.gaussian_delta(1.0, epsilon)


def test_the_loss_is_a_distribution_in_both_directions():
    """Of P and of Q: the loss -e has exp(-e) times the probability of e."""
    both = profiles.least(
        profiles.gaussian_profile(1.0), profiles.pair_profile(1.5, 1e-6)
    )
    loss = profiles.dominating_loss(both, INTERVAL, [1.5])
    deltas = loss.get_delta_for_epsilon([-40.0, 0.0, 600.0])
    assert deltas[0] == pytest.approx(1.0, rel=1e-12)
    for epsilon in (0.3, 1.0, 2.5):
        below, above = loss.get_delta_for_epsilon([-epsilon, epsilon])
        expected = 1.0 - math.exp(-epsilon) + math.exp(-epsilon) * above
        assert below == pytest.approx(expected, rel=1e-9)


def test_a_profile_that_is_none_is_refused():
    with pytest.raises(ArithmeticError, match="no deltas"):
        profiles.dominating_loss(lambda epsilons: np.full_like(epsilons, np.nan), 1e-3)
