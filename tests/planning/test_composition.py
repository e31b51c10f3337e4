"""Tests `compose`, which computes the joint guarantee of several runs."""

import math

import dp_accounting
import pytest
from dp_accounting.pld import pld_privacy_accountant
from small_plans import planned, small_plan

import tf_bandmf
from tf_bandmf import participation as lib
from tf_bandmf.accounting import gaussian
from tf_bandmf.accounting.cyclic_fixed_size import CyclicFixedSizeAccountant
from tf_bandmf.accounting.cyclic_poisson import CyclicPoissonAccountant
from tf_bandmf.accounting.guarantee import REPLACE_ONE, ZERO_OUT, fill

DELTA = 1e-5
M = 600


def fixed(mechanism="identity", epsilon=2.0, **changes):
    return small_plan(mechanism, M, 60, 2, epsilon=epsilon, **changes)


def sampled(participation, **changes):
    options = {"epsilon": 2.0, "num_steps": 20, **changes}
    return planned("identity", sampling=participation, **options)


@pytest.fixture(scope="module")
def replaced():
    # This noise multiplier gives an epsilon of about 2 without a slow calibration.
    return sampled(
        tf_bandmf.CyclicFixedSize(M, 6, 1), epsilon=None, noise_multiplier=0.36
    )


@pytest.mark.invariant(19)
def test_gaussian_runs_compose_exactly():
    plans = [fixed(), fixed("lambda_cgd:0.5", 0.7), fixed(epsilon=1.0)]
    joint = tf_bandmf.compose(plans)
    mu = math.sqrt(sum(plan.noise_multiplier**-2 for plan in plans))
    for delta in (1e-2, 1e-5, 1e-8):
        one = dp_accounting.get_epsilon_gaussian(1.0 / mu, delta)
        assert joint.epsilon(delta) == pytest.approx(one, rel=1e-6)
    guarantee = joint.guarantee_at(DELTA)
    assert guarantee.kind == "exact" and guarantee.adjacency == ZERO_OUT
    assert guarantee.zcdp_rho == pytest.approx(mu**2 / 2.0, rel=1e-12)
    assert max(p.epsilon for p in plans) < guarantee.epsilon
    assert guarantee.epsilon < sum(p.epsilon for p in plans)


@pytest.mark.slow
def test_amplified_runs_compose_by_their_privacy_loss():
    poisson = sampled(tf_bandmf.Poisson(M, 60))
    one = tf_bandmf.compose([poisson])
    assert one.epsilon(DELTA) == pytest.approx(2.0, rel=1e-3)
    joint = tf_bandmf.compose([poisson, fixed(), poisson])
    accountant = pld_privacy_accountant.PLDAccountant()
    for plan in joint.plans:
        accountant.compose(plan.dp_event())
    guarantee = joint.guarantee_at(DELTA)
    assert guarantee.epsilon == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-3)
    assert guarantee.kind == "bound"
    unamplified = math.sqrt(sum(p.noise_multiplier**-2 for p in joint.plans))
    worst = gaussian.gaussian_epsilon(1.0 / unamplified, DELTA)
    assert guarantee.epsilon < worst


@pytest.mark.parametrize("delta", [1e-6, 1e-14])
def test_poisson_runs_of_one_kind_are_one_longer_run(delta):
    """Two equal runs with Poisson sampling cost as much as one that is twice as long.

    Their amplification counts even at delta = 1e-14, for which numerical convolutions
    would be too inaccurate.
    """
    run = sampled(tf_bandmf.Poisson(M, 6), epsilon=None, noise_multiplier=0.4)
    noise = run.unit_noise_stddev
    longer = CyclicPoissonAccountant(40, 0.01).epsilon(delta, noise)
    assert tf_bandmf.compose([run, run]).epsilon(delta) == pytest.approx(longer)


def test_the_same_runs_cost_more_where_records_are_replaced():
    runs = [fixed(), fixed("lambda_cgd:0.5", 0.7)]
    joint = tf_bandmf.compose(runs, adjacency="replace-one")
    assert joint.adjacency == REPLACE_ONE
    noise = 0.5 / math.sqrt(sum(run.noise_multiplier**-2 for run in runs))
    expected = gaussian.gaussian_epsilon(noise, DELTA)
    assert joint.epsilon(DELTA) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("delta", [1e-5, 1e-13])
def test_runs_without_replacement_are_one_longer_run(replaced, delta):
    joint = tf_bandmf.compose([replaced] * 2)
    assert joint.adjacency == REPLACE_ONE
    longer = CyclicFixedSizeAccountant(40, M, 6)
    noise = replaced.unit_noise_stddev
    actual = joint.epsilon(delta)
    assert actual == pytest.approx(longer.epsilon(delta, noise), rel=1e-4)
    by_renyi = dp_accounting.rdp.RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
    ).compose(replaced.dp_event(), 2)
    assert actual < by_renyi.get_epsilon(delta)


@pytest.mark.slow_cases("3")
@pytest.mark.invariant(12)
@pytest.mark.parametrize("count", [1, 3])
def test_beside_others_runs_without_replacement_are_stated_for_zero_out(
    replaced, count
):
    other = fixed()
    joint = tf_bandmf.compose([*[replaced] * count, other])
    assert joint.adjacency == ZERO_OUT
    assert joint.zcdp_rho == pytest.approx(
        count * 0.5 * replaced.unamplified_noise**-2 + other.zcdp_rho
    )
    guarantee = joint.guarantee_at(DELTA)
    # The joint epsilon is between the largest epsilon of the runs and their sum.
    both = tf_bandmf.compose([replaced] * count)
    assert max(replaced.epsilon, other.epsilon) < guarantee.epsilon
    added = both.epsilon(DELTA / 2) + other.guarantee_at(DELTA / 2).epsilon
    assert guarantee.epsilon < added
    stated = count * replaced.epsilon + other.epsilon
    assert joint.epsilon(count * replaced.delta + other.delta) < stated


def test_the_statement_names_the_runs():
    plans = [fixed(), fixed("lambda_cgd", 1.0)]
    joint = tf_bandmf.compose(plans)
    statement = joint.statement(unit="one device")
    points = dict(statement.points())
    assert points["Unit of privacy"] == "One device."
    for plan in plans:
        assert plan.fingerprint in points["Runs"]
    assert (
        fill("epsilon = {:.6g up}", joint.epsilon(DELTA)) in points["Formal statement"]
    )
    assert "## Privacy statement" in statement.to_markdown()
    with pytest.raises(ValueError, match="unit must be one line"):
        joint.statement(unit="")
    with pytest.raises(ValueError, match="different units"):
        tf_bandmf.compose([fixed(), fixed(unit="one user")]).statement()


@pytest.mark.invariant(8)
def test_a_test_seed_in_one_run_marks_the_statement():
    joint = tf_bandmf.compose([fixed(), fixed(test_seed=1)])
    assert dict(joint.statement().points())["Formal statement"].startswith("NONE")


def test_impossible_neighbors_and_budgets_are_refused():
    replaced = tf_bandmf.Release(epsilon=0.5, adjacency="replace-one")
    for adjacency in ("zero-out", "add-or-remove", "either"):
        with pytest.raises(ValueError, match="adjacency must be one of"):
            tf_bandmf.compose([replaced, fixed()], adjacency=adjacency)
    joint = tf_bandmf.compose([fixed()])
    with pytest.raises(ValueError, match="delta must be"):
        joint.epsilon(0.0)


@pytest.mark.slow_cases("b_min_sep_sampling", "poisson")
@pytest.mark.parametrize("kind", ["b_min_sep_sampling", "balls_in_bins", "poisson"])
def test_never_more_than_basic_composition(kind):
    """The joint epsilon of two sampled plans never exceeds that of basic composition."""
    participation = lib.PARTICIPATIONS[kind].example(16)
    plan = sampled(participation, num_steps=16)
    together = tf_bandmf.compose([plan, plan])
    actual = together.guarantee_at(2.0 * plan.delta)
    assert actual.epsilon <= 2.0 * plan.epsilon * (1.0 + 1e-6)
    assert actual.kind == ("estimate" if plan.kind == "estimate" else "bound")
    # Basic composition gives no guarantee at a delta below the sum of both deltas.
    less = together.guarantee_at(1.9 * plan.delta)
    assert less.accountant != "basic composition of the individual guarantees"


def test_a_poisson_run_where_records_are_replaced_is_what_its_event_is():
    """Under replace-one adjacency, a plan and its DP event have the same epsilon.

    Group privacy is applied to the amplified run as a whole, not to each step.
    """
    # This noise multiplier gives an epsilon of about 3.
    options = {"noise_multiplier": 0.0963, "delta": 1e-6, "sampling": "poisson"}
    run = small_plan("identity", 640, 20, 3, **options)
    other = tf_bandmf.Release(epsilon=1e-6, adjacency="replace-one")
    as_plan = tf_bandmf.compose([run, other]).epsilon(1e-6)
    event = tf_bandmf.Release(event=run.dp_event())
    as_event = tf_bandmf.compose([event, other]).epsilon(1e-6)
    assert run.epsilon < as_plan == pytest.approx(as_event, rel=0.01)
