"""Tests how `compose` handles releases that were made by other software."""

import math

import dp_accounting
import numpy as np
import pytest
import scipy
from dp_accounting.pld import common, pld_privacy_accountant, privacy_loss_distribution
from small_plans import small_plan

import tf_bandmf
from tf_bandmf.accounting import gaussian
from tf_bandmf.accounting.guarantee import REPLACE_ONE, ZERO_OUT
from tf_bandmf.planning.composition import REPLACE_ONLY

DELTA = 1e-5
GAUSS, LAPLACE = dp_accounting.GaussianDpEvent, dp_accounting.LaplaceDpEvent


def Pair(epsilon, delta=0.0, **more):
    return tf_bandmf.Release(**{"epsilon": epsilon, "delta": delta, **more})


def Rho(rho, **more):
    return tf_bandmf.Release(rho=rho, **more)


def Event(event, **more):
    return tf_bandmf.Release(event=event, **more)


@pytest.fixture(scope="module")
def plan():
    return small_plan("identity", 600, 60, 2, epsilon=2.0)


def test_pairs_compose_optimally_and_never_above_their_sum(plan):
    parts = [Pair(0.1, 1e-8)] * 50
    joint = tf_bandmf.compose(parts)
    loss = privacy_loss_distribution.from_privacy_parameters(
        common.DifferentialPrivacyParameters(0.1, 1e-8),
        value_discretization_interval=1e-4,
    ).self_compose(50)
    assert joint.epsilon(DELTA) == pytest.approx(
        loss.get_epsilon_for_delta(DELTA), rel=1e-3
    )
    assert joint.epsilon(DELTA) < 0.7 * 50 * 0.1
    assert tf_bandmf.compose([Pair(1.0)]).epsilon(DELTA) <= 1.0
    both = tf_bandmf.compose([plan, Pair(0.5, 1e-7)]).guarantee_at(plan.delta + 1e-7)
    assert plan.epsilon < both.epsilon < plan.epsilon + 0.5
    assert both.kind == "bound" and both.adjacency == ZERO_OUT and both.zcdp_rho is None


def test_a_gaussian_event_is_like_a_run_of_its_noise(plan):
    event = GAUSS(plan.noise_multiplier * math.sqrt(2.0))
    twice = Event(dp_accounting.SelfComposedDpEvent(event, 2))
    joint, runs = tf_bandmf.compose([plan, twice]), tf_bandmf.compose([plan, plan])
    assert joint.guarantee_at(DELTA).kind == "exact"
    assert joint.epsilon(DELTA) == pytest.approx(runs.epsilon(DELTA), rel=1e-9)
    assert joint.zcdp_rho == pytest.approx(runs.zcdp_rho, rel=1e-12)


def test_rhos_add_up_and_cost_more_than_the_gaussian_mechanism(plan):
    rho = 0.1
    joint = tf_bandmf.compose([Rho(0.03), Rho(0.07)])
    assert joint.zcdp_rho == pytest.approx(rho)
    actual = joint.epsilon(DELTA)
    least = gaussian.gaussian_epsilon(1.0 / math.sqrt(2.0 * rho), DELTA)
    # The upper limit is from Proposition 1.3 of Bun and Steinke (arXiv:1605.02065).
    assert least < actual < rho + 2.0 * math.sqrt(rho * math.log(1.0 / DELTA))
    mixed = tf_bandmf.compose([plan, Rho(rho)])
    as_gaussian = tf_bandmf.compose([plan, Event(GAUSS(1.0 / math.sqrt(2.0 * rho)))])
    all_rho = tf_bandmf.compose([Rho(plan.zcdp_rho), Rho(rho)])
    assert as_gaussian.epsilon(DELTA) < mixed.epsilon(DELTA) < all_rho.epsilon(DELTA)


@pytest.mark.parametrize("delta", [1e-6, 1e-11, 1e-12, 1e-13, 1e-14])
def test_many_pure_releases_are_never_below_their_binomial(delta):
    """The computed epsilon is valid for 1,000 randomized responses.

    At this epsilon, their exact joint delta is not above the requested delta. Each
    response has epsilon = 0.01. The total privacy loss of n responses is
    (2 k - n) epsilon, where k has a binomial distribution.
    """
    count, epsilon = 1000, 0.01
    actual = tf_bandmf.compose([Pair(epsilon)] * count).epsilon(delta)
    k = np.arange(count + 1)
    mass = scipy.stats.binom.pmf(k, count, scipy.special.expit(epsilon))
    rest = -np.expm1(np.minimum(actual - (2 * k - count) * epsilon, 0.0))
    assert mass @ rest <= delta
    assert actual <= count * epsilon * (1 + 1e-9)


def test_several_kinds_are_never_below_the_best_that_one_can_do():
    """The computed epsilon is valid for a Gaussian mechanism plus a randomized response.

    At this epsilon, the exact joint delta is not above the requested delta. The exact
    joint delta is the mean of the Gaussian delta over the two possible privacy losses of
    the randomized response.
    """
    mu, response = 0.5, 1.0
    p = 1.0 / (1.0 + math.exp(-response))
    for delta in (1e-5, 1e-8, 1e-11, 1e-13):
        releases = [Event(GAUSS(1.0 / mu)), Pair(response)]
        actual = tf_bandmf.compose(releases).epsilon(delta)
        exact = p * gaussian.gaussian_delta(1.0 / mu, actual - response)
        exact += (1.0 - p) * gaussian.gaussian_delta(1.0 / mu, actual + response)
        assert exact <= delta


def test_what_is_written_of_a_release_is_what_is_read():
    sampled = dp_accounting.PoissonSampledDpEvent(0.01, GAUSS(1.0))
    run = {"event": dp_accounting.SelfComposedDpEvent(sampled, 100)}
    run = Pair(0.8, 1e-6, noise_multiplier=0.7, **run)
    for release in (run, tf_bandmf.Release.gaussian(2.0, 1e-6), Pair(0.0)):
        assert tf_bandmf.Release.from_json(release.to_json()) == release


@pytest.mark.slow
def test_other_events_compose_as_dp_accounting_composes_them(plan):
    event = dp_accounting.ComposedDpEvent(
        [
            dp_accounting.SelfComposedDpEvent(LAPLACE(5.0), 20),
            dp_accounting.PoissonSampledDpEvent(0.05, GAUSS(0.8)),
        ]
    )
    accountant = pld_privacy_accountant.PLDAccountant()
    accountant.compose(event).compose(GAUSS(plan.noise_multiplier))
    joint = tf_bandmf.compose([plan, Event(event)])
    assert joint.epsilon(DELTA) == pytest.approx(
        accountant.get_epsilon(DELTA), rel=1e-4
    )


def test_what_has_renyi_divergences_alone_composes_with_all_else(plan):
    tree = Event(dp_accounting.SingleEpochTreeAggregationDpEvent(3.0, [100]))
    alone = tf_bandmf.compose([tree])
    joint = tf_bandmf.compose([tree, plan, Pair(0.1)])
    assert alone.epsilon(DELTA) < joint.epsilon(DELTA)
    assert joint.epsilon(DELTA) < alone.epsilon(DELTA) + plan.epsilon + 0.1


@pytest.mark.invariant(12)
def test_a_replacement_is_two_zero_outs(plan):
    joint = tf_bandmf.compose([Pair(0.1, adjacency="replace-one"), Event(LAPLACE(5.0))])
    assert joint.adjacency == REPLACE_ONLY
    assert joint.epsilon(DELTA) == pytest.approx(0.1 + 2.0 / 5.0, rel=1e-3)
    assert tf_bandmf.compose(
        [Pair(1.0, 1e-9), Pair(0.1, adjacency="replace-one")]
    ).epsilon((1.0 + math.e) * 1e-9 * 1.01) == pytest.approx(2.1, rel=1e-3)
    moved = tf_bandmf.compose([Rho(0.1), Rho(0.2, adjacency="replace-one"), plan])
    assert moved.zcdp_rho == pytest.approx(0.4 + 0.2 + 4.0 * plan.zcdp_rho)
    sampled = dp_accounting.SampledWithoutReplacementDpEvent(1000, 10, GAUSS(2.0))
    other = tf_bandmf.compose(
        [Event(sampled, adjacency="replace-one"), Event(GAUSS(2.0))]
    )
    assert other.epsilon(DELTA) > gaussian.gaussian_epsilon(1.0, DELTA)
    assert REPLACE_ONE != REPLACE_ONLY


def test_estimates_from_elsewhere_mark_the_whole(plan):
    joint = tf_bandmf.compose([plan, Pair(0.5, 1e-7, kind="estimate")])
    assert joint.guarantee_at(2e-5).kind == "estimate"


def test_the_statement_names_what_was_made_elsewhere(plan):
    joint = tf_bandmf.compose([plan, Pair(0.5, 1e-7, about="query log, 2025")])
    points = dict(joint.statement().points())
    assert "query log, 2025: (epsilon = 0.5, delta = 1e-07)-DP." in points["Runs"]
    assert "1 other release(s)" in points["Data accesses covered"]


def _with_count(count):
    several = dp_accounting.SelfComposedDpEvent(GAUSS(1.0), count)
    return dp_accounting.ComposedDpEvent([GAUSS(1.0), several])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Pair(-1.0), "epsilon must be"),
        (lambda: Pair(1.0, 1.0), "delta must be in"),
        (lambda: Pair(1.0, kind="exact"), "kind must be"),
        (lambda: Rho(math.inf), "rho must be"),
        (lambda: Event(dp_accounting.NonPrivateDpEvent()), "privacy"),
        (lambda: Event(GAUSS(math.nan)), "event must"),
        (lambda: Event(LAPLACE(-1.0)), "event must"),
        # A negative or fractional count would reduce the cost of other releases.
        (lambda: Event(_with_count(-1)), "count of a"),
        (lambda: Event(_with_count(0.5)), "count of a"),
        (
            lambda: Event(
                dp_accounting.SampledWithoutReplacementDpEvent(9, 3, GAUSS(1.0))
            ),
            "added or removed",
        ),
    ],
)
def test_what_has_no_privacy_or_is_none_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
