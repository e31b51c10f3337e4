"""DP events and privacy losses of plans agree with dp-accounting."""

import functools

import dp_accounting
import pytest
from dp_accounting import pld, rdp

import tf_bandmf
from tf_bandmf import strategies
from tf_bandmf.accounting import event_losses

M, N = 10_000, 40


PARTICIPATIONS = {
    "fixed": tf_bandmf.FixedEpochOrder(M, 1000, 4),
    "min_sep": tf_bandmf.MinSep(8),
    "cyclic": tf_bandmf.CyclicPoisson(M, 200, 8),
    "fixed_size": tf_bandmf.CyclicFixedSize(M, 20, 8),
    "bins": tf_bandmf.BallsInBins(M, 1000, 4),
    "shuffled": tf_bandmf.Shuffled(M, 1000, 4),
}


def epsilon_by(accountant, event):
    return accountant.compose(event).get_epsilon(1e-5)


@functools.cache
def plan_under(kind):
    """Returns a plan whose clip norm is 3, so noise in the wrong units fails tests."""
    strategy = strategies.bsr(tf_bandmf.workloads.prefix_sum(N), 4)
    if kind == "bins":
        strategy = strategies.lambda_cgd(N, 0.8)
    use = {"sampling": PARTICIPATIONS[kind], "num_steps": N, "l2_norm_clip": 3.0}
    return tf_bandmf.plan(strategy, epsilon=2.0, delta=1e-5, **use)


@pytest.mark.slow_cases("cyclic")
@pytest.mark.parametrize("kind", ["fixed", "shuffled", "cyclic"])
def test_dp_accountings_own_accountant_confirms_the_plan(kind):
    made = plan_under(kind)
    event = made.dp_event()
    by_pld = epsilon_by(pld.PLDAccountant(), event)
    assert by_pld == pytest.approx(made.epsilon, rel=1e-3)
    by_rdp = epsilon_by(rdp.RdpAccountant(), event)
    assert made.epsilon < by_rdp < 1.5 * made.epsilon


@pytest.mark.slow
def test_fixed_size_has_an_event_for_replacing_one_only():
    made = plan_under("fixed_size")
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    event = made.dp_event()
    actual = epsilon_by(rdp.RdpAccountant(neighboring_relation=relation), event)
    assert made.epsilon < actual
    with pytest.raises(dp_accounting.UnsupportedEventError):
        epsilon_by(rdp.RdpAccountant(), event)
    loss = event_losses.of_event(event, 1e-3)
    assert loss.get_epsilon_for_delta(made.delta) == pytest.approx(
        made.epsilon, rel=1e-2
    )


def test_balls_in_bins_have_no_event_and_say_what_to_do():
    with pytest.raises(ValueError, match="no event for the accountant 'balls in bins"):
        plan_under("bins").dp_event()


def test_zcdp_holds_without_amplification():
    made = plan_under("fixed")
    assert made.guarantee.zcdp_rho == 0.5 / made.noise_multiplier**2
    assert epsilon_by(rdp.RdpAccountant(), made.dp_event()) >= made.epsilon
    assert plan_under("cyclic").guarantee_at(1e-6).zcdp_rho is None
