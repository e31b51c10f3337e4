"""The spent part of a balance: the best of several theorems, never below the truth."""

import math

import dp_accounting
import pytest
from small_plans import small_plan

import tf_bandmf
from tf_bandmf.accounting import gaussian
from tf_bandmf.accounting.cyclic_poisson import CyclicPoissonAccountant
from tf_bandmf.ledger.balances import Balance, Budget
from tf_bandmf.ledger.releases import Dataset, of_plan
from tf_bandmf.planning.composition import GAUSSIAN, Release

DELTA = 1e-5
NOISE = dp_accounting.GaussianDpEvent(1.0)
DATASET = Dataset("patients", "0" * 64, "one training example", "zero-out")


def gaussian_run(epsilon, delta=1e-6):
    return Release.gaussian(gaussian.calibrate_noise_stddev(epsilon, delta), delta)


def poisson_run(epsilon=0.8, queries=100):
    return sampled(
        epsilon, 1e-6, 1.5, dp_accounting.PoissonSampledDpEvent(0.01, NOISE), queries
    )


def sampled(epsilon, delta, mu, query, count, **more):
    fields = {"epsilon": epsilon, "delta": delta, "noise_multiplier": 1.0 / mu}
    event = dp_accounting.SelfComposedDpEvent(query, count)
    return Release(**fields, event=event, **more)


def fixed_size_run():
    noise = dp_accounting.GaussianDpEvent(2.0)
    query = dp_accounting.SampledWithoutReplacementDpEvent(100, 10, noise)
    return sampled(0.5, 1e-7, 4.0, query, 20, adjacency="either")


def pair(epsilon, delta):
    return Release(epsilon=epsilon, delta=delta)


def total(*releases, delta=DELTA, epsilon=1.0):
    costs = tuple((release,) for release in releases)
    return Balance(DATASET, Budget(epsilon, delta), costs)


def test_gaussian_runs_compose_exactly():
    balance = total(*[gaussian_run(1.0)] * 4)
    noise = gaussian.calibrate_noise_stddev(1.0, 1e-6)
    expected = gaussian.gaussian_epsilon(noise / 2.0, DELTA)
    assert balance.spent == pytest.approx(expected, rel=1e-9)
    assert balance.method == GAUSSIAN


def test_what_is_written_is_what_is_read():
    for release in (poisson_run(), gaussian_run(1.0), pair(0.0, 0.0)):
        assert Release.from_json(release.to_json()) == release


@pytest.mark.slow_cases("mixed", "poisson", "fixed-size", "fixed-size-and-gaussian")
@pytest.mark.parametrize(
    "releases",
    [
        [gaussian_run(1.0)] * 3,
        [pair(0.5, 1e-7)] * 3,
        [pair(0.01, 0.0)] * 50,
        [pair(0.1, 1e-7)] * 10,
        [poisson_run()] * 2 + [gaussian_run(0.3)],
        [poisson_run(), pair(0.2, 1e-8), gaussian_run(0.3)],
        [fixed_size_run()] * 2,
        [fixed_size_run(), gaussian_run(0.3)],
    ],
    ids=[
        "gaussian", "stated", "pure", "rounded", "poisson", "mixed", "fixed-size",
        "fixed-size-and-gaussian",
    ],
)  # fmt: skip
def test_never_worse_than_basic_composition(releases):
    epsilon = sum(release.epsilon for release in releases)
    delta = sum(release.delta for release in releases) or 1e-6
    balance = total(*releases, epsilon=epsilon, delta=delta)
    assert 0.0 < balance.spent <= epsilon * (1 + 1e-9)
    assert not balance.is_over
    # And no budget that is smaller than the best bound admits it.
    smaller = total(*releases, epsilon=0.99 * balance.spent, delta=delta)
    assert smaller.is_over


@pytest.mark.slow
def test_amplified_runs_compose_by_their_losses_as_compose_does():
    plan = small_plan(
        "identity", 1200, 40, 2, epsilon=1.0, delta=1e-6, sampling="poisson"
    )
    spent = total(*[of_plan(plan, DATASET)] * 3).spent
    joint = tf_bandmf.compose([plan] * 3).epsilon(DELTA)
    assert spent == pytest.approx(joint, rel=1e-3)
    assert spent < 0.9 * 3 * plan.guarantee_at(DELTA / 3).epsilon


@pytest.mark.slow_cases("1e-08", "1e-11", "1e-14")
@pytest.mark.parametrize("delta", [1e-5, 1e-8, 1e-11, 1e-14])
def test_a_balance_of_poisson_runs_is_never_below_their_accountant(delta):
    """At tiny deltas, too, where convolutions of many queries are rounding errors.

    One run as it states it; two, as one run of twice as many queries.
    """
    probability, noise, queries = 0.05, 1.5, 400
    stated = CyclicPoissonAccountant(queries, probability).epsilon(delta, noise)
    mu = math.sqrt(queries) / noise
    query = dp_accounting.PoissonSampledDpEvent(
        probability, dp_accounting.GaussianDpEvent(noise)
    )
    run = sampled(stated, delta, mu, query, queries)
    twice = CyclicPoissonAccountant(2 * queries, probability).epsilon(delta, noise)
    for runs, exact in ((1, stated), (2, twice)):
        balance = total(*[run] * runs, delta=delta, epsilon=0.99 * exact)
        assert exact <= balance.spent <= 1.001 * exact
        assert balance.is_over


@pytest.mark.parametrize("delta", [1e-6, 1e-11, 1e-12, 1e-13, 1e-14])
def test_many_pure_releases_are_never_below_their_binomial(delta):
    """1000 randomized responses of epsilon .01: their exact delta, in rationals' stead.

    Losses are (2 k - n) epsilon; beyond the epsilon found, the mass must be <= delta.
    """
    count, epsilon = 1000, 0.01
    actual = total(*[pair(epsilon, 0.0)] * count, delta=delta).spent
    log_p, log_q = -math.log1p(math.exp(-epsilon)), -math.log1p(math.exp(epsilon))
    exact = 0.0
    for k in range(count + 1):
        loss = (2 * k - count) * epsilon
        if loss > actual:
            log_mass = math.lgamma(count + 1) - math.lgamma(k + 1)
            log_mass += k * log_p + (count - k) * log_q - math.lgamma(count - k + 1)
            exact += math.exp(log_mass) * -math.expm1(actual - loss)
    assert exact <= delta
    assert actual <= count * epsilon * (1 + 1e-9)


def test_several_kinds_are_never_below_the_best_that_one_can_do():
    """A Gaussian mechanism beside randomized response, by one dimensional integrals.

    The joint delta is the mean over the response's two losses of the Gaussian profile.
    """
    mu, response = 0.5, 1.0
    p = 1.0 / (1.0 + math.exp(-response))
    for delta in (1e-5, 1e-8, 1e-11, 1e-13):
        releases = Release.gaussian(1.0 / mu, 1e-15), pair(response, 0.0)
        actual = total(*releases, delta=delta).spent
        exact = p * gaussian.gaussian_delta(1.0 / mu, actual - response)
        exact += (1.0 - p) * gaussian.gaussian_delta(1.0 / mu, actual + response)
        assert exact <= delta
