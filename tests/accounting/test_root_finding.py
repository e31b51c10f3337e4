"""Roots of log delta in log noise."""

import math

import pytest

from tf_bandmf.accounting import gaussian
from tf_bandmf.accounting.root_finding import near_root


@pytest.mark.parametrize("start", [-6.0, -1.0, 0.4, 4.9])
@pytest.mark.parametrize("epsilon, delta", [(0.3, 1e-8), (2.0, 1e-5), (9.0, 1e-3)])
def test_the_noise_of_the_gaussian_mechanism_is_found_by_few_values(
    start, epsilon, delta
):
    tried = []

    def excess(log_noise):
        tried.append(log_noise)
        actual = gaussian.gaussian_delta(math.exp(log_noise), epsilon)
        return math.log(max(actual, 1e-300)) - math.log(delta)

    actual = near_root(excess, start, 5.0, 1e-5)
    exact = gaussian.calibrate_noise_stddev(epsilon, delta)
    assert math.exp(actual) == pytest.approx(exact, rel=2e-5)
    assert len(tried) <= 6 + 2 * abs(start - actual) + 3


def test_where_delta_is_zero_by_rounding_steps_are_longer():
    tried = []

    def excess(log_noise):
        tried.append(log_noise)
        return 12.0 * (-4.0 - log_noise) if log_noise < -2.0 else -679.0

    assert near_root(excess, 4.0, 5.0, 1e-5) == pytest.approx(-4.0, abs=1e-5)
    assert len(tried) <= 6 + 4 + 3  # steps of 1 from 4 to -2, then of 1/2


def test_what_is_not_enough_before_the_largest_noise_gets_that():
    assert near_root(lambda x: 7.0 - x, 0.0, 5.0, 1e-3) == 5.0
    assert near_root(lambda x: 7.0 - x, 6.0, 5.0, 1e-3) == 5.0


def test_a_function_without_a_root_is_refused():
    with pytest.raises(ArithmeticError, match="no lower limit of the noise"):
        near_root(lambda x: -1.0, 0.0, 5.0, 1e-3)
