"""Tests dominating privacy losses that are computed from privacy profiles."""

import math

import numpy as np
import pytest

from tf_bandmf.accounting import gaussian, profiles

INTERVAL = 1e-3
EPSILONS = np.array([0.0, 0.01, 0.5, 1.0, 3.0, 8.0])


def gaussian_profile(noise):
    return lambda epsilons: gaussian.gaussian_deltas(noise, epsilons)


@pytest.mark.parametrize("noise", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("count", [1, 4])
def test_a_gaussian_mechanism_by_its_profile_is_itself(noise, count):
    loss = profiles.dominating_loss(gaussian_profile(noise), INTERVAL)
    actual = loss.self_compose(count)
    for epsilon in EPSILONS:
        expected = gaussian.gaussian_delta(noise / math.sqrt(count), epsilon)
        delta = actual.get_delta_for_epsilon(float(epsilon))
        assert expected <= delta <= expected * 1.01 + 1e-12


def test_neighbors_of_neighbors_of_a_gaussian_mechanism_are_bounded():
    doubled = profiles.twice(gaussian_profile(2.0))(EPSILONS)
    for epsilon, delta in zip(EPSILONS, doubled):
        assert delta >= gaussian.gaussian_delta(1.0, epsilon)


def test_the_loss_is_a_distribution_in_both_directions():
    """Probabilities sum to 1, and loss -e is exp(-e) times as probable as loss e."""
    both = profiles.least(gaussian_profile(1.0), profiles.pair_profile(1.5, 1e-6))
    loss = profiles.dominating_loss(both, INTERVAL, [1.5])
    deltas = loss.get_delta_for_epsilon([-40.0, 0.0, 600.0])
    assert deltas[0] == pytest.approx(1.0, rel=1e-12)
    for epsilon in (0.3, 1.0, 2.5):
        below, above = loss.get_delta_for_epsilon([-epsilon, epsilon])
        expected = 1.0 - math.exp(-epsilon) + math.exp(-epsilon) * above
        assert below == pytest.approx(expected, rel=1e-9)
