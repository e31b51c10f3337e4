"""Tests plans whose privacy is amplified by sampling."""

import functools

import pytest
from small_plans import planned

import tf_bandmf
from tf_bandmf import strategies
from tf_bandmf.accounting import gaussian
from tf_bandmf.accounting.guarantee import Guarantee

BUDGET = {"epsilon": 2.0, "delta": 1e-5}
M = 10_000


@functools.cache
def cyclic():
    return tf_bandmf.plan(
        strategies.bsr(tf_bandmf.workloads.prefix_sum(160), 8),
        sampling=tf_bandmf.CyclicPoisson(M, 100, 8),
        num_steps=160,
        l2_norm_clip=0.5,
        **BUDGET,
    )


@functools.cache
def bins(**options):
    return planned(
        strategies.lambda_cgd(40, 0.8),
        sampling=tf_bandmf.BallsInBins(M, 1000, 4),
        **{**BUDGET, **options},
    )


def test_balls_in_bins_is_an_estimate_or_a_bound_and_says_so():
    estimate, bound = bins(delta=9e-5), bins(delta=9e-5, confidence=1 - 1e-6)
    assert estimate.kind == "estimate" and estimate.confidence is None
    assert bound.kind == "bound" and bound.confidence == 1 - 1e-6
    unamplified = gaussian.calibrate_noise_stddev(2.0, 9e-5)
    assert estimate.noise_multiplier < bound.noise_multiplier < unamplified
    assert "Monte Carlo ESTIMATE" in str(estimate.statement())
    assert "except with probability 1e-06" in str(bound.statement())
    assert "random bins is claimed" in str(bound.statement())
    assert estimate.expected_batch_size == 1000.0


@pytest.mark.invariant(2)
def test_no_accountant_can_be_asked_about_another_sampler():
    config = cyclic().to_config()
    config["participation"] = tf_bandmf.CyclicFixedSize(M, 100, 8).to_config()
    with pytest.raises(ValueError, match="The guarantee must be"):
        tf_bandmf.Plan.from_config(config)
    config = bins().to_config()
    config["kind"] = "exact"
    with pytest.raises(ValueError, match="The guarantee must be"):
        tf_bandmf.Plan.from_config(config)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "certain"}, "kind must be one of"),
        ({"epsilon": float("nan")}, "epsilon must be finite and > 0"),
        ({"delta": 0.0}, "delta must be in"),
        ({"kind": "estimate", "confidence": 0.9}, "confidence must be None unless"),
    ],
)
def test_a_guarantee_is_valid_or_does_not_exist(fields, message):
    valid = {"epsilon": 1.0, "delta": 1e-5, "kind": "exact", "accountant": "test"}
    assert Guarantee(**valid).epsilon == 1.0
    with pytest.raises(ValueError, match=message):
        Guarantee(**{**valid, **fields})
