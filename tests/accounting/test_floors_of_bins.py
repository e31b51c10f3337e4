"""Simulated upper bounds on delta are not below exact lower bounds (60 digits)."""

import floors
import mpmath
import numpy as np
import pytest

from tf_bandmf.accounting.balls_in_bins import BallsInBinsAccountant


def grams(num_bins, participations):
    """Returns Gram matrices with zero, equal or decaying correlations between bins."""
    identity = np.eye(num_bins)
    distance = np.abs(np.subtract.outer(np.arange(num_bins), np.arange(num_bins)))
    distance = np.minimum(distance, num_bins - distance)
    return {
        "orthogonal": participations * identity,
        "equal": participations * (0.3 * np.ones_like(identity) + 0.7 * identity),
        "decaying": participations * 0.8**distance,
    }


@pytest.mark.attack(
    "Balls in bins: simulated bounds compared with 60-digit lower bounds on delta",
    tried="noise 0.25 to 5, epsilon 0.1 to 20, 2 to 100 bins, deltas of at least 1e-7",
    area="audit",
)
@pytest.mark.slow_cases("100-1-equal", "100-1-decaying", "100-1-orthogonal")
@pytest.mark.parametrize("kind", ["orthogonal", "equal", "decaying"])
@pytest.mark.parametrize("num_bins, participations", [(2, 1), (10, 7), (100, 1)])
@pytest.mark.invariant(3, 12)
def test_no_bound_of_bins_is_below_its_floor(num_bins, participations, kind, figure):
    gram = grams(num_bins, participations)[kind]
    accountant = BallsInBinsAccountant(gram, 1 - 1e-6, num_draws=2000)
    norm, count, least = float(np.sqrt(gram[0, 0])), 0, mpmath.inf
    for noise in norm * np.array([0.25, 0.5, 1.0, 5.0]):
        for epsilon in (0.1, 1.0, 6.0, 20.0):
            floor = floors.own_bin(norm, noise, num_bins, epsilon)
            if floor < 1e-7:
                continue
            delta = accountant.delta(epsilon, noise)
            assert delta >= floor, (noise, epsilon)
            count += 1
            least = min(least, delta / floor)
    assert count >= 4 and least >= 1.0
    figure(f"{count} points, none below")
