"""Tests `Plan.reserve`, which keeps budget for private counts and evaluations."""

import math

import numpy as np
import pytest
from small_plans import small_plan

import tf_bandmf
from tf_bandmf.accounting import gaussian
from tf_bandmf.ledger.releases import Dataset, of_plan
from tf_bandmf.planning.measurements import Measurements

DELTA = 1e-5


def planned(mechanism="bisr:4", **options):
    return small_plan(mechanism, 2000, 100, 3, **{"epsilon": 2.0, **options})


PLAN = planned()
BOTH = PLAN.reserve(counts=0.02, metrics=0.1, evaluations=8)


def test_one_guarantee_covers_steps_and_evaluations():
    assert (BOTH.epsilon, BOTH.delta) == (PLAN.epsilon, PLAN.delta)
    # The values of 1 / sigma^2 of steps and of evaluations must add up to the value of
    # the whole budget. A tenth of this value is reserved for evaluations.
    steps = BOTH.noise_multiplier**-2
    kept = 8 * BOTH.measurements.noise_multiplier**-2
    whole = gaussian.calibrate_noise_stddev(2.0, DELTA) ** -2
    assert kept == pytest.approx(0.1 * whole, rel=1e-9)
    assert steps + kept == pytest.approx(whole, rel=1e-6)
    assert steps + kept <= whole
    assert BOTH.zcdp_rho == pytest.approx(0.5 * (steps + kept))
    assert BOTH.noise_multiplier / PLAN.noise_multiplier == pytest.approx(
        1 / math.sqrt(0.9), rel=1e-6
    )
    release = tf_bandmf.Release("run and evaluations", event=BOTH.dp_event())
    assert tf_bandmf.compose([release]).epsilon(DELTA) == pytest.approx(2.0, rel=1e-6)


def test_counts_alone_change_the_noise_and_not_the_accounting():
    counted = PLAN.reserve(counts=0.02)
    assert counted.noise_multiplier == PLAN.noise_multiplier
    assert counted.guarantee == PLAN.guarantee
    factor = 1 / math.sqrt(0.98)
    assert counted.noise_stddev == pytest.approx(PLAN.noise_stddev * factor, rel=1e-6)
    assert counted.noise_stddev >= PLAN.noise_stddev * factor
    assert counted.rmse() == pytest.approx(PLAN.rmse() * factor)


@pytest.mark.parametrize("sampling", ["poisson", "balls-in-bins", "cyclic-fixed-size"])
@pytest.mark.slow_cases("poisson", "cyclic-fixed-size")
def test_amplified_plans_keep_a_part_too(sampling):
    plan = planned("identity", sampling=sampling, epsilon=4.0)
    both = plan.reserve(metrics=0.2, evaluations=4)
    assert both.epsilon == plan.epsilon
    assert both.noise_multiplier > plan.noise_multiplier * 1.001
    # By basic composition, the joint epsilon is at most the sum of two epsilons at
    # delta / 2: that of the steps and that of the evaluations.
    steps = both.participation.accountant(both.strategy.matrix)
    alone = steps.guarantee(both.unit_noise_stddev, DELTA / 2).epsilon
    factor = 2.0 if "Replace" in both.adjacency else 1.0
    measured = gaussian.gaussian_epsilon(1 / (factor * both.measurements.mu), DELTA / 2)
    assert alone + measured >= both.epsilon * 0.999
    assert alone < both.epsilon
    assert both.guarantee_at(DELTA).epsilon == pytest.approx(4.0, rel=2e-3)
    assert both.zcdp_rho > (4 if factor == 2 else 1) * 0.5 * both.noise_multiplier**-2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "Nothing is reserved"),
        ({"metrics": 0.1}, "both metrics"),
        ({"metrics": 1.0, "evaluations": 3}, r"in \[0, 1\)"),
        ({"metrics": 0.1, "evaluations": 2.5}, "whole number"),
        ({"counts": 0.7}, "counts must be"),
        ({"counts": math.nan}, "counts must be"),
    ],
)
def test_what_cannot_be_reserved(options, message):
    with pytest.raises(ValueError, match=message):
        PLAN.reserve(**options)


def test_a_reservation_is_made_once():
    with pytest.raises(ValueError, match="already"):
        BOTH.reserve(counts=0.01)
    with pytest.raises(ValueError, match="or neither"):
        Measurements(evaluations=3)


def test_statement_card_and_ledger_cover_it():
    text = str(BOTH.statement())
    assert "8 private evaluation(s)" in text and "noisy counts" in text
    assert "private evaluation" not in str(PLAN.statement())
    assert "private evaluation" in BOTH.statement().card().to_markdown()
    joint = str(tf_bandmf.compose([BOTH, PLAN]).statement())
    assert "8 private evaluation(s)" in joint
    patients = Dataset("patients", "0" * 64, BOTH.unit, "zero-out")
    square = lambda plan, steps=None: of_plan(plan, patients, steps).zcdp(False)  # noqa: E731
    assert square(BOTH) == pytest.approx(square(PLAN), rel=1e-6)
    # If a run ends early, the ledger assumes that the run made all its evaluations.
    alone = planned(epsilon=None, noise_multiplier=BOTH.noise_multiplier)
    expected = square(alone, 20) + square(BOTH) - square(alone)
    assert square(BOTH, 20) == pytest.approx(expected, rel=1e-6)
    assert BOTH.epsilon_after(20) > alone.epsilon_after(20)
    assert BOTH.epsilon_after(BOTH.num_steps) == BOTH.epsilon
    assert np.isfinite(BOTH.epsilon_curve([1e-6])[0].epsilon)
