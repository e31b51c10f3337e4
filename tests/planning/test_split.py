"""Tests `split`, which plans several runs that jointly stay within one budget."""

import math

import pytest

import tf_bandmf

DATA = {"num_examples": 6000, "batch_size": 200}


def test_gaussian_runs_spend_the_budget_by_their_shares():
    runs = [{"epochs": 4}, {"epochs": 8, "mechanism": "lambda_cgd:0.5"}]
    head, whole = tf_bandmf.split(4.0, 1e-6, [3, 7], runs, mechanism="bisr:4", **DATA)
    assert (head.num_steps, whole.num_steps) == (120, 240)
    precisions = [plan.noise_multiplier**-2 for plan in (head, whole)]
    assert precisions[0] / math.fsum(precisions) == pytest.approx(0.3, rel=1e-6)
    assert tf_bandmf.compose([head, whole]).epsilon(1e-6) == pytest.approx(4, rel=1e-6)


@pytest.mark.parametrize("sampling", ["poisson", "cyclic-fixed-size"])
def test_sampled_runs_are_within_the_budget_and_near_it(sampling):
    plans = tf_bandmf.split(
        2.0, 1e-5, [1, 1, 2], mechanism="identity", epochs=3, sampling=sampling, **DATA
    )
    together = tf_bandmf.compose(plans).epsilon(1e-5)
    assert 0.99 * 2.0 <= together <= 2.0 * (1 + 1e-9)
    first, second, third = (plan.noise_multiplier for plan in plans)
    assert first == second > third


@pytest.mark.parametrize(
    "changed, text",
    [
        ({"shares": [0.5, -0.5]}, "positive"),
        ({"runs": [{"epsilon": 3.0}, {}]}, "epsilon for a run"),
        ({"noise_multiplier": 1.0}, "noise_multiplier for a run"),
    ],
)
def test_mistakes(changed, text):
    arguments = {
        "epsilon": 4.0, "delta": 1e-5, "shares": [1, 1], "mechanism": "identity",
        "epochs": 2, **DATA, **changed,
    }  # fmt: skip
    with pytest.raises(ValueError, match=text):
        tf_bandmf.split(**arguments)
