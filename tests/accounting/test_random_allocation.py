"""Balls in bins with C = I and one epoch is random allocation: beside its own library.

Feldman and Shenfeld, arXiv:2502.08202; the package random-allocation 1.0.5 gives bounds of
epsilon from below (`allocation_epsilon_lower_bound`) and from above
(`allocation_epsilon_combined`, both directions, orders 2 to 60) at delta = 1e-5.
"""

import pytest

from tf_bandmf import strategies
from tf_bandmf.accounting.balls_in_bins import BallsInBinsAccountant
from tf_bandmf.accounting.guarantee import Simulation

# Bins, noise multiplier, the package's lower and upper bound.
PUBLISHED = [
    (30, 2.0, 0.19167, 0.42935),
    (100, 1.0, 0.58102, 1.02978),
    (100, 0.5, 5.39755, 6.27041),
    (391, 0.4, 7.23905, 8.21071),
]


@pytest.mark.slow_cases("391-0.4-7.23905-8.21071")
@pytest.mark.parametrize("bins, noise, lower, upper", PUBLISHED)
def test_estimates_are_between_the_bounds(bins, noise, lower, upper):
    matrix = strategies.identity(bins).matrix
    draws = Simulation(num_draws=20_000)
    actual = BallsInBinsAccountant.of_strategy(matrix, bins, draws).epsilon(1e-5, noise)
    assert lower - 4.0 * actual.standard_error <= actual <= upper
