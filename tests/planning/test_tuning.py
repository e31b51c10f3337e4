"""Tests the privacy cost of tuning hyperparameters on private data."""

import dp_accounting
import pytest
from dp_accounting import dp_event
from small_plans import planned, small_plan

import tf_bandmf
from tf_bandmf.accounting import gaussian, selection
from tf_bandmf.accounting.balls_in_bins import BallsInBinsAccountant
from tf_bandmf.accounting.bins_simulator import gram_matrix

DATA = {"num_examples": 2000, "batch_size": 200, "epochs": 4}


@pytest.fixture(scope="module")
def fixed():
    return tf_bandmf.plan("bisr:4", epsilon=2.0, delta=1e-5, **DATA)


@pytest.fixture(scope="module")
def poisson():
    # This noise multiplier gives an epsilon of about 2 without a slow calibration.
    return planned("identity", noise_multiplier=0.26, sampling="poisson", **DATA)


def test_a_run_without_amplification_pays_like_one_gaussian_mechanism(fixed):
    cost = tf_bandmf.tuning_cost(fixed, 10)
    noise = fixed.noise_multiplier
    wanted = selection.profile_epsilon(
        lambda delta: gaussian.gaussian_epsilon(noise, delta), 10.0, 1.0, 1e-5
    )
    assert cost.epsilon == wanted
    assert 1.5 * fixed.epsilon < cost.epsilon < 3.0 * fixed.epsilon
    assert cost.trial_epsilon == 2.0 and cost.delta == 1e-5
    assert "2402.06701" in cost.method and "without" not in cost.method
    assert "about 10 private trials" in str(cost) and cost.remark == ""
    with pytest.raises(TypeError, match=r"plan must be a tf_bandmf\.Plan"):
        tf_bandmf.tuning_cost("bisr", 10)


@pytest.mark.parametrize("distribution", ["geometric", "logarithmic", 0.5])
def test_one_expected_trial_costs_one_trial(fixed, distribution):
    cost = tf_bandmf.tuning_cost(fixed, 1, distribution=distribution)
    assert cost.epsilon == pytest.approx(fixed.epsilon, rel=1e-9)
    assert cost.draw_trials() == 1


def test_amplification_by_poisson_sampling_counts(poisson):
    cost = tf_bandmf.tuning_cost(poisson, 5)
    assert "without amplification" not in cost.method
    whole = selection.profile_epsilon(
        lambda d: gaussian.gaussian_epsilon(poisson.noise_multiplier, d), 5, 1.0, 1e-5
    )
    assert poisson.epsilon < cost.epsilon < 0.8 * whole
    # The cost does not exceed dp-accounting's Renyi DP bound for the same selection.
    accountant = dp_accounting.rdp.RdpAccountant()
    event = dp_event.RepeatAndSelectDpEvent(poisson.dp_event(), 5, 1.0)
    assert cost.epsilon <= accountant.compose(event).get_epsilon(1e-5)


def test_an_estimate_is_not_amplified_and_says_so():
    plan = planned("lambda_cgd:0.5", epsilon=2.0, sampling="balls-in-bins", **DATA)
    assert plan.kind == "estimate"
    cost = tf_bandmf.tuning_cost(plan, 5)
    assert "without amplification" in cost.method
    assert "a simulated estimate" in cost.remark
    assert "Plan.bounded" in str(cost) and cost.confidence is None
    whole = selection.profile_epsilon(
        lambda d: gaussian.gaussian_epsilon(plan.noise_multiplier, d), 5, 1.0, 1e-5
    )
    assert cost.epsilon == whole


@pytest.mark.slow
def test_a_simulated_bound_counts_and_its_confidence_too():
    bound = {"sampling": "balls-in-bins", "confidence": 1 - 1e-6, "delta": 1e-3}
    plan = small_plan("identity", 40, 10, 2, **bound)
    cost = tf_bandmf.tuning_cost(plan, 3)
    assert cost.remark == "" and "without amplification" not in cost.method
    assert cost.confidence == 1 - 1e-6 and "with probability 1e-06" in str(cost)

    def of_one(epsilon_at):
        return selection.profile_epsilon(epsilon_at, 3, 1.0, 1e-3, num_tried=8)

    # The cost is a simulated bound. It must exceed a simulated estimate, and must be
    # below the cost without amplification.
    estimated = of_one(
        lambda delta: BallsInBinsAccountant(
            gram_matrix(plan.strategy.matrix, 4), num_draws=5000, seed=7
        ).epsilon(delta, plan.unit_noise_stddev)
    )
    whole = of_one(lambda d: gaussian.gaussian_epsilon(plan.noise_multiplier, d))
    assert estimated < cost.epsilon < min(1.1 * estimated, whole)


def test_a_bound_that_takes_too_many_draws_counts_without_amplification():
    budget = dict(epsilon=4.0, delta=1e-12, confidence=1 - 1e-6)
    with pytest.warns(UserWarning, match="The result claims no amplification"):
        plan = planned("identity", sampling="balls-in-bins", **budget, **DATA)
    assert plan.confidence == 1 - 1e-6 and plan.guarantee.is_unamplified
    text = str(plan.statement())
    assert "No amplification by sampling is claimed" in text
    assert "random bins is claimed" not in text
    with pytest.warns(UserWarning, match="The result claims no amplification"):
        cost = tf_bandmf.tuning_cost(plan, 3)
    assert "take too many draws" in cost.remark and cost.confidence is None
    assert "without amplification" in cost.method
    assert tf_bandmf.Plan.from_config(plan.to_config()).guarantee == plan.guarantee


def test_replacement_is_accounted_for_as_replacement():
    # This noise multiplier gives an epsilon of about 4.
    sampling = tf_bandmf.CyclicFixedSize(2000, 200, 2)
    plan = planned("bsr:2", num_steps=40, sampling=sampling, noise_multiplier=1.0)
    cost = tf_bandmf.tuning_cost(plan, 3)
    at = lambda d: gaussian.gaussian_epsilon(0.5 * plan.noise_multiplier, d)  # noqa: E731
    assert plan.epsilon < cost.epsilon <= selection.profile_epsilon(at, 3, 1.0, 1e-5)
