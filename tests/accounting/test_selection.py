"""The best of a random number of runs: Papernot and Steinke; Koskela et al."""

import contextlib
import functools
import math

import dp_accounting
import floors
import numpy as np
import pytest
import scipy.stats

from tf_bandmf.accounting import gaussian, selection

SHAPES = (0.0, 0.5, 1.0, 2.0)
DELTA = 1e-5


def probabilities(mean, shape, count=4000):
    """P(K = k), k = 1 ...: arXiv:2110.03620, Definition 1, by its recursion."""
    gamma = selection.gamma_of_mean(mean, shape)
    k = np.arange(1, count)
    ratios = (1.0 - gamma) * (k + shape) / (k + 1.0)
    first = (
        (1.0 - gamma) / math.log(1.0 / gamma)
        if shape == 0.0
        else shape * (1.0 - gamma) / (gamma**-shape - 1.0)
    )
    return first * np.concatenate([[1.0], np.cumprod(ratios)])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mean", [1.5, 10.0, 40.0])
def test_gamma_gives_the_mean(mean, shape):
    actual = probabilities(mean, shape)
    assert actual.sum() == pytest.approx(1.0, abs=1e-9)
    assert actual @ np.arange(1, actual.size + 1) == pytest.approx(mean, rel=1e-6)
    if shape == 1.0:
        assert selection.gamma_of_mean(mean, shape) == pytest.approx(1.0 / mean)


@pytest.mark.slow_cases("0.5")
@pytest.mark.parametrize("shape", [*SHAPES, math.inf])
def test_draws_have_the_distribution(shape):
    rng = np.random.default_rng(3)
    draws = np.array([selection.draw_number(6.0, shape, rng) for _ in range(20_000)])
    least = 0 if math.isinf(shape) else 1
    assert draws.min() == least
    expected = (
        scipy.stats.poisson(6.0).pmf(np.arange(0, 6))
        if math.isinf(shape)
        else probabilities(6.0, shape)[:6]
    )
    counts = np.array([np.mean(draws == k) for k in range(least, least + 6)])
    errors = 5.0 * np.sqrt(expected / draws.size)
    assert np.all(np.abs(counts - expected) < errors)


def test_one_expected_run_is_one_run():
    rng = np.random.default_rng(0)
    for shape in SHAPES:
        assert selection.gamma_of_mean(1.0, shape) == 1.0
        assert selection.draw_number(1.0, shape, rng) == 1


def paper_epsilon(noise, mean, shape, delta, num_orders=4000):
    """Theorem 2 or 6 of arXiv:2110.03620 for a Gaussian mechanism, and conversion.

    Written from the paper, on a fine grid of orders; the conversion to (epsilon, delta) is
    Proposition 12 of Canonne, Kamath and Steinke, 2020, arXiv:2004.00010.
    """
    orders = np.concatenate([1.0 + np.geomspace(1e-3, 500.0, num_orders)])
    curve = orders / (2.0 * noise**2)
    if math.isinf(shape):
        hat = np.log1p(1.0 / (orders - 1.0))
        deltas = np.array([gaussian.gaussian_delta(noise, float(e)) for e in hat])
        selected = curve + mean * deltas + np.log(mean) / (orders - 1.0)
    else:
        gamma = selection.gamma_of_mean(mean, shape)
        constant = (1.0 + shape) * np.min(
            (1.0 - 1.0 / orders) * curve + math.log(1.0 / gamma) / orders
        )
        selected = curve + constant + np.log(mean) / (orders - 1.0)
    actual = (
        selected
        + np.log1p(-1.0 / orders)
        - (np.log(delta) + np.log(orders)) / (orders - 1.0)
    )
    return actual.min()


@pytest.mark.parametrize(
    "noise, mean, shape",
    [(4.0, 10.0, 1.0), (4.0, 10.0, 0.0), (2.0, 30.0, 0.5), (8.0, 3.0, 1.0)],
)
def test_renyi_epsilon_is_that_of_the_paper(noise, mean, shape):
    event = dp_accounting.GaussianDpEvent(noise)
    actual = selection.renyi_epsilon(event, mean, shape, DELTA)
    wanted = paper_epsilon(noise, mean, shape, DELTA)
    # dp-accounting has fewer orders: its minimum is not smaller.
    assert wanted * (1.0 - 1e-9) <= actual <= 1.005 * wanted


def test_renyi_epsilon_of_poisson_is_that_of_the_paper():
    event = dp_accounting.GaussianDpEvent(4.0)
    actual = selection.renyi_epsilon(event, 10.0, math.inf, DELTA)
    wanted = paper_epsilon(4.0, 10.0, math.inf, DELTA, 300)
    # The library takes its delta' from Renyi DP, the formula above from the exact profile.
    assert wanted <= actual <= 1.6 * wanted


@pytest.mark.parametrize("shape", SHAPES)
def test_a_pure_mechanism_pays_2_plus_eta_times_epsilon(shape):
    """arXiv:2110.03620, after Theorem 2: (2 + eta) epsilon, whatever the mean."""
    actual = selection.profile_epsilon(lambda delta: 0.7, 20.0, shape, 1e-12)
    assert actual == pytest.approx((2.0 + shape) * 0.7, rel=1e-6)


def generating(x, mean, shape):
    """E[x^K]."""
    gamma = selection.gamma_of_mean(mean, shape)
    rest = 1.0 - (1.0 - gamma) * x
    if shape == 0.0:
        return np.log(rest) / math.log(gamma)
    return (rest**-shape - 1.0) / (gamma**-shape - 1.0)


def selected_delta(noise, mean, shape, epsilon, order):
    """Delta of the best of K Gaussian runs, by brute force on a grid of outputs.

    Rounded outputs have at most the delta of the mechanism.

    Args:
      order: score of an output; equal ones are told apart by the output.
    """
    edges = np.linspace(-12.0 * noise, 12.0 * noise + 1.0, 6001)
    centres = 0.5 * (edges[1:] + edges[:-1])
    ranks = np.argsort(order(centres), kind="stable")
    actual = []
    for shift in (0.0, 1.0):
        mass = np.diff(scipy.stats.norm(shift, noise).cdf(edges))[ranks]
        below = np.concatenate([[0.0], np.cumsum(mass)])
        actual.append(np.diff(generating(np.minimum(below, 1.0), mean, shape)))
    p, q = actual
    return max(
        np.maximum(a - math.exp(epsilon) * b, 0.0).sum() for a, b in ((p, q), (q, p))
    )


ORDERS = {
    "largest": lambda y: y,
    "smallest": lambda y: -y,
    "nearest": lambda y: -np.abs(y - 0.5),
    "farthest": lambda y: np.abs(y - 0.5),
}


@pytest.mark.parametrize("shape", [0.0, 1.0])
def test_bounds_hold_by_brute_force_and_are_not_far(shape):
    noise, mean, delta = 2.0, 8.0, 1e-3
    single = gaussian.gaussian_epsilon(noise, delta)
    profile = selection.profile_epsilon(
        lambda d: gaussian.gaussian_epsilon(noise, d), mean, shape, delta
    )
    event = dp_accounting.GaussianDpEvent(noise)
    renyi = selection.renyi_epsilon(event, mean, shape, delta)
    for order in ORDERS.values():
        for epsilon in (profile, renyi):
            assert selected_delta(noise, mean, shape, epsilon, order) <= delta
    # Choosing costs something, and the bound is within a factor of two of the truth.
    at_single = [
        selected_delta(noise, mean, shape, single, order) for order in ORDERS.values()
    ]
    assert max(at_single) > 1.5 * delta
    at_half = [
        selected_delta(noise, mean, shape, 0.5 * profile, order)
        for order in ORDERS.values()
    ]
    assert max(at_half) > delta


def test_errors():
    with pytest.raises(ValueError, match="distribution must be one of geometric"):
        selection.shape_of("uniform")
    with pytest.raises(ValueError, match="distribution must be"):
        selection.shape_of(-1.0)
    with pytest.raises(ValueError, match="distribution must be"):
        selection.shape_of(math.nan)
    for shape in (1e-9, 1e9, 10**400):
        with pytest.raises(ValueError, match=r"0 or from 0\.001 to 1000"):
            selection.shape_of(shape)
    assert selection.shape_of(0) == 0.0 and selection.shape_of("poisson") == math.inf
    for mean in (0.5, math.nan, math.inf, True, "3"):
        with pytest.raises(ValueError, match="expected_trials must be a number from 1"):
            selection.check_expected_runs("expected_trials", mean)
    with pytest.raises(ValueError, match="for truncated negative binomial"):
        selection.profile_epsilon(lambda d: 1.0, 3.0, math.inf, DELTA)
    with pytest.raises(ValueError, match="No Renyi DP is known"):
        event = dp_accounting.UnsupportedDpEvent()
        selection.renyi_epsilon(event, 3.0, 1.0, DELTA)
    with pytest.raises(ValueError, match="delta must be in"):
        selection.profile_epsilon(lambda d: 1.0, 3.0, 1.0, 0.0)


@pytest.mark.slow_cases(
    "1.0-0.0-20.0",
    "1.0-0.0-1.0",
    "10.0-1.0-20.0",
    "10.0-1.0-1.0",
    "1.0-0.0-0.05",
    "10.0-1.0-0.05",
)
@pytest.mark.parametrize("noise", [0.05, 1.0, 20.0])
@pytest.mark.parametrize("mean, shape", [(1.0, 0.0), (10.0, 1.0), (100.0, math.inf)])
@pytest.mark.invariant(12)
def test_no_epsilon_is_below_its_floor(mean, shape, noise):
    """The largest of K Gaussian answers, in 60 digits."""
    event = dp_accounting.GaussianDpEvent(noise)
    for delta in (1e-3, 1e-15):
        actual = []
        with contextlib.suppress(ValueError):
            actual.append(selection.renyi_epsilon(event, mean, shape, delta))
        if math.isfinite(shape):
            at = functools.partial(gaussian.gaussian_epsilon, noise)
            actual.append(selection.profile_epsilon(at, mean, shape, delta))
        for epsilon in actual:
            assert floors.best_of_runs(noise, mean, shape, epsilon) <= delta


def test_epsilons_whose_exponential_overflows_are_numbers():
    actual = selection.profile_epsilon(lambda delta: 2000.0, 3.0, 1.0, 1e-5)
    assert 2000.0 < actual < 6001.0


def test_a_renyi_dp_that_rounding_made_negative_is_not_an_epsilon_of_zero():
    """So few examples are sampled that dp-accounting says 0."""
    event = dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(1e-9, dp_accounting.GaussianDpEvent(10.0)),
        10,
    )
    for delta in (1e-5, 1e-12):
        assert selection.renyi_epsilon(event, 1.0, 0.0, delta) > 0.0
