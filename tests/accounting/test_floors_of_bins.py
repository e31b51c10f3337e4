"""Balls in bins without simulation against floors in 60 digits, over the whole domain."""

import sys
from pathlib import Path

import mpmath
import numpy as np
import pytest

from tf_bandmf.accounting.bins_certain import QUICK, CertainBins

sys.path.insert(0, str(Path(__file__).parent))
import floors

EPSILONS = (0.01, 0.1, 1.0, 3.0, 6.0, 10.0, 14.0, 20.0, 24.0, 30.0, 50.0)
NOISES = (0.05, 0.1, 0.2, 0.25, 0.35, 0.5, 0.7, 1.0, 2.0, 5.0, 100.0)
# No float64 is between it and 0 that would be exact to a few digits.
LEAST = mpmath.mpf("1e-290")
DELTAS = 10.0 ** np.arange(-20, -2)


def grams(num_bins, participations):
    """Orthogonal columns; equal correlations; those that die away along the bins."""
    identity = np.eye(num_bins)
    distance = np.abs(np.subtract.outer(np.arange(num_bins), np.arange(num_bins)))
    distance = np.minimum(distance, num_bins - distance)
    return {
        "orthogonal": participations * identity,
        "equal": participations * (0.3 * np.ones_like(identity) + 0.7 * identity),
        "decaying": participations * 0.8**distance,
    }


def tried(num_bins, participations, kind, noises, epsilons):
    """How many points, and the least of bound over floor."""
    gram = grams(num_bins, participations)[kind]
    bound = CertainBins(gram, QUICK)
    count, least = 0, mpmath.inf
    for noise in noises:
        noise *= np.sqrt(participations)
        before = 1.0
        for epsilon in epsilons:
            delta = bound.delta(epsilon, noise)
            norm = float(np.sqrt(gram[0, 0]))
            floor = floors.own_bin(norm, noise, num_bins, epsilon)
            assert delta >= floor or floor < LEAST, (noise, epsilon, delta, floor)
            # It falls, but for what the search within a bound leaves.
            assert delta <= before * 1.02, (noise, epsilon)
            before = delta
            count += 1
            if floor > 1e-20:
                least = min(least, delta / floor)
    return count, least


@pytest.mark.slow_cases(
    "10-7-noises1-equal",
    "2-1-noises0-orthogonal",
    "10-7-noises1-decaying",
    "2-1-noises0-decaying",
    "2-1-noises0-equal",
)
@pytest.mark.attack(
    "Balls in bins, bound of every size, held against a floor of 60 digits",
    tried="noise 0.05 to 100, epsilon 0.01 to 50, 2 to 1,000 bins, deltas to 1e-20",
    area="audit",
    invariants=[3, 12],
)
@pytest.mark.parametrize("kind", ["orthogonal", "equal", "decaying"])
@pytest.mark.parametrize(
    "num_bins, participations, noises",
    [
        (2, 1, NOISES),
        (10, 7, (0.1, 0.25, 5.0)),
        pytest.param(10, 7, NOISES, marks=pytest.mark.slow),
        pytest.param(10, 1, NOISES, marks=pytest.mark.slow),
        pytest.param(100, 1, NOISES, marks=pytest.mark.slow),
        pytest.param(100, 1000, NOISES, marks=pytest.mark.slow),
        pytest.param(1000, 1, NOISES, marks=pytest.mark.slow),
    ],
)
@pytest.mark.invariant(12)
def test_no_bound_of_bins_is_below_its_floor(
    num_bins, participations, noises, kind, figure
):
    count, least = tried(num_bins, participations, kind, noises, EPSILONS)
    assert count == len(noises) * len(EPSILONS) and least >= 1.0
    figure(f"{count} points, none below")


@pytest.mark.slow_cases("0.5-10", "1.0-10")
@pytest.mark.parametrize("noise, num_bins", [(0.25, 100), (0.5, 10), (1.0, 10)])
def test_epsilon_does_not_stand_still(noise, num_bins):
    """Far in the tails epsilon grows with log(1 / delta) as that of the floor does."""
    bound = CertainBins(np.eye(num_bins), QUICK)
    deltas = DELTAS[::4] if noise > 0.25 else DELTAS[8:14]
    epsilons = [bound.epsilon(delta, noise) for delta in deltas]
    for delta, epsilon in zip(deltas, epsilons):
        assert floors.own_bin(1.0, noise, num_bins, epsilon) <= delta
        # Within a factor of the floor, too: a bound that is worth its seconds.
        smaller = max(0.9 * epsilon - 0.7, 0.0)
        assert floors.own_bin(1.0, noise, num_bins, smaller) > delta
    steps = np.diff(epsilons)
    assert np.all(steps < 0.0)
    # log delta is concave in epsilon there: a tenth costs less and less of it.
    assert np.all(np.diff(steps / np.diff(np.log(deltas))) < 0.02)


def test_the_settings_that_were_wrong():
    """epsilon 20, delta 1e-8, 100 bins; and noise 0.25, where epsilon hardly moved."""
    bound = CertainBins(np.eye(100))
    noise = bound.calibrate_noise_stddev(20.0, 1e-8)
    assert floors.own_bin(1.0, noise, 100, 20.0) <= 1e-8
    assert noise == pytest.approx(0.2875, rel=0.05)
    found = [bound.epsilon(delta, 0.25) for delta in (1e-6, 1e-7, 1e-8, 1e-9)]
    for delta, epsilon in zip((1e-6, 1e-7, 1e-8, 1e-9), found):
        assert floors.own_bin(1.0, 0.25, 100, epsilon) <= delta


@pytest.mark.parametrize("epsilon, noise", [(30.0, 5.0), (50.0, 100.0), (1000.0, 1.0)])
def test_large_epsilons_are_numbers(epsilon, noise):
    assert 0.0 <= CertainBins(np.eye(10), QUICK).delta(epsilon, noise) <= 1e-20
