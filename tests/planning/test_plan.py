"""Tests the noise, the warnings, the files and the fingerprints of plans."""

import warnings

import numpy as np
import pytest
from small_plans import planned, small_plan

import tf_bandmf
from tf_bandmf import strategies, workloads

DATA = {"num_examples": 600, "batch_size": 60, "epochs": 5}
BUDGET = {"epsilon": 4.0, "delta": 1e-5}


def test_expected_batch_size_is_the_mean_over_an_epoch():
    assert small_plan("identity", 100, 30, 2).expected_batch_size == 25.0


def test_fingerprint_changes_with_every_privacy_relevant_field():
    base = {"mechanism": "lambda_cgd:0.5", **BUDGET, **DATA}
    changes = [
        {},
        {"epsilon": 4.1},
        {"delta": 2e-5},
        {"num_examples": 601},
        {"batch_size": 50},
        {"epochs": 6},
        {"l2_norm_clip": 1.1},
        {"mechanism": "lambda_cgd:0.51"},
        {"mechanism": "lambda_cgd:0.5:normalized"},
        {"workload": "sgd:momentum=0.1"},
        {"workload": "sgd:decay=0.99"},
        {"workload": workloads.prefix_sum(50, np.linspace(1, 0.5, 50))},
        {"test_seed": 0},
        {"generator": "chacha20"},
        {"unit": "one user"},
    ]
    prints = {planned(**{**base, **c}).fingerprint for c in changes}
    assert len(prints) == len(changes)


def test_fingerprint_ignores_how_the_strategy_was_found():
    actual = tf_bandmf.plan("lambda_cgd", **BUDGET, **DATA)
    lambda_ = actual.strategy.parameters["lambda"]
    given = tf_bandmf.plan(f"lambda_cgd:{lambda_!r}", **BUDGET, **DATA)
    # Training compares the fingerprint at each step, so it must be computed only once.
    assert actual.fingerprint == given.fingerprint is given.fingerprint


def test_delta_that_permits_to_publish_somebody_is_warned_about():
    with pytest.warns(UserWarning, match="1 / num_examples"):
        tf_bandmf.plan("identity", epsilon=4.0, delta=0.01, **DATA)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tf_bandmf.plan("identity", **BUDGET, **DATA)
    assert not any("num_examples" in str(warning.message) for warning in caught)


@pytest.mark.invariant(12)
def test_a_plan_with_too_small_a_sensitivity_does_not_exist():
    config = tf_bandmf.plan("identity", **BUDGET, **DATA).to_config()
    config["sensitivity"]["value"] *= 0.9
    with pytest.raises(ValueError, match="damaged"):
        tf_bandmf.Plan.from_config(config)


@pytest.mark.invariant(3)
def test_a_bound_on_the_sensitivity_gives_a_bound_on_epsilon():
    workload = workloads.prefix_sum(9)
    strategy = strategies.bsr(workload, 4, column_normalized=True)
    participation = tf_bandmf.MinSep(1, 9)
    assert not strategy.sensitivity(participation).is_exact
    plan = planned(strategy, num_steps=9, sampling=participation)
    assert plan.kind == "bound"
    assert "proven upper bound" in str(plan.statement())


def test_the_smallest_delta_that_the_noise_can_give_is_accepted():
    assert small_plan("identity", 100, 10, 1, delta=1e-20).delta == 1e-20


@pytest.mark.parametrize("clip", [1.0, 0.1, 3e-7, 1.7e9])
@pytest.mark.parametrize("noise", [0.3, 0.7, 1.0, 1.1, 123.4])
@pytest.mark.invariant(12)
def test_noise_of_single_precision_is_not_less(noise, clip):
    """Training uses the noise level in float32, and rounding never decreases it."""
    options = {"noise_multiplier": noise, "l2_norm_clip": clip}
    plan = small_plan("lambda_cgd:0.5", 6, 2, 2, **options)
    actual = np.float32(plan.noise_stddev)
    assert float(actual) == plan.noise_stddev
    in_use = max(clip, float(np.float32(clip)))
    wanted = noise * plan.sensitivity.value * in_use
    assert wanted <= plan.noise_stddev <= wanted * (1.0 + 2.0**-23)
