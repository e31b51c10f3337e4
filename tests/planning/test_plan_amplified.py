"""Plans whose sampler amplifies: noise, guarantee, statement, files, misuse."""

import functools

import numpy as np
import pytest
from small_plans import planned

import tf_bandmf
from tf_bandmf import strategies
from tf_bandmf.accounting import gaussian
from tf_bandmf.accounting.cyclic_poisson import CyclicPoissonAccountant
from tf_bandmf.accounting.guarantee import REPLACE_ONE, ZERO_OUT, Guarantee

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


@functools.cache
def fixed_size():
    return tf_bandmf.plan(
        "identity",
        sampling=tf_bandmf.CyclicFixedSize(M, 20, 1),
        num_steps=100,
        **BUDGET,
    )


@functools.cache
def shuffled():
    participation = tf_bandmf.Shuffled(M, 1000, 4)
    return tf_bandmf.plan("lambda_cgd", sampling=participation, **BUDGET)


@pytest.mark.slow
def test_cyclic_poisson_noise_is_the_accountants_times_column_norm_and_clip():
    plan = cyclic()
    accountant = CyclicPoissonAccountant(20, 0.08)
    noise = accountant.calibrate(2.0, 1e-5).noise_stddev
    norm = plan.strategy.matrix.column_norms().max()
    assert plan.noise_stddev == pytest.approx(noise * norm * 0.5, rel=2e-7)
    # Two searches end within their tolerance, on either side; that of the plan's own
    # accountant is what it may not be below.
    own = CyclicPoissonAccountant(20, 0.08, norm)
    assert plan.noise_stddev >= own.calibrate(2.0, 1e-5).noise_stddev * 0.5
    assert own.delta(2.0, plan.noise_stddev / 0.5) <= 1e-5
    assert plan.expected_batch_size == 100.0
    assert plan.guarantee.kind == "exact" and plan.guarantee.adjacency == ZERO_OUT
    unamplified = gaussian.calibrate_noise_stddev(2.0, 1e-5)
    assert plan.noise_multiplier < 0.5 * unamplified


@pytest.mark.slow
def test_dp_sgd_is_one_part():
    kwargs = {"num_steps": 100, **BUDGET}
    one = tf_bandmf.plan(
        "identity", sampling=tf_bandmf.CyclicPoisson(M, 100, 1), **kwargs
    )
    poisson = tf_bandmf.plan("identity", sampling=tf_bandmf.Poisson(M, 100), **kwargs)
    assert one.noise_stddev == poisson.noise_stddev


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


@pytest.mark.slow
def test_bounds_name_themselves_and_their_adjacency():
    plan = fixed_size()
    assert plan.kind == "bound" and plan.adjacency == REPLACE_ONE
    assert "Replace-one" in str(plan.statement())
    assert "without replacement" in plan.accountant
    plan = shuffled()
    assert plan.kind == "bound" and plan.adjacency == ZERO_OUT
    assert "No amplification by sampling is claimed." in str(plan.statement())
    fixed = tf_bandmf.plan(
        "lambda_cgd", num_examples=M, batch_size=1000, epochs=4, **BUDGET
    )
    assert plan.noise_stddev == fixed.noise_stddev


@pytest.mark.slow_cases("bins", "cyclic", "fixed_size")
@pytest.mark.parametrize("build", [cyclic, bins, fixed_size, shuffled])
def test_save_load_epsilon_and_batches(build, tmp_path):
    plan = build()
    path = str(tmp_path / "plan.json")
    plan.save(path)
    loaded = tf_bandmf.Plan.load(path)
    assert loaded.fingerprint == plan.fingerprint
    assert loaded.noise_stddev == plan.noise_stddev
    assert loaded.guarantee == plan.guarantee
    actual = tf_bandmf.plan(
        plan.strategy,
        noise_multiplier=plan.noise_multiplier,
        delta=1e-5,
        sampling=plan.participation,
        num_steps=plan.num_steps,
    )
    assert actual.epsilon == pytest.approx(2.0, rel=0.02)
    batches = plan.batches(np.arange(M))
    assert batches.num_steps == plan.num_steps and batches.plan_id == plan.plan_id
    with pytest.raises(ValueError, match=f"The plan is for {M} examples"):
        plan.batches(np.arange(M - 1))


@pytest.mark.slow_cases("cyclic")
@pytest.mark.parametrize("build", [cyclic, bins, fixed_size])
@pytest.mark.invariant(12)
def test_too_little_noise_is_found_out(build):
    config = build().to_config()
    config["noise_multiplier"] *= 0.8
    with pytest.raises(ValueError, match="more than the plan's"):
        tf_bandmf.Plan.from_config(config)


@pytest.mark.invariant(2)
def test_no_accountant_can_be_asked_about_another_sampler():
    config = cyclic().to_config()
    config["participation"] = tf_bandmf.CyclicFixedSize(M, 100, 8).to_config()
    with pytest.raises(ValueError, match="is accounted for by"):
        tf_bandmf.Plan.from_config(config)
    config = bins().to_config()
    config["kind"] = "exact"
    with pytest.raises(ValueError, match="is accounted for by"):
        tf_bandmf.Plan.from_config(config)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"mechanism": "lambda_cgd", "num_steps": 160}, "Use BallsInBins"),
        ({"mechanism": "bsr:16", "num_steps": 160}, "num_parts >= 16"),
        ({"mechanism": "bsr"}, "num_steps is missing"),
        ({"mechanism": "bsr", "num_steps": 160, "batch_size": 9}, "batch_size = 100"),
        ({"mechanism": "bsr", "num_steps": 160, "num_examples": 9}, "num_examples ="),
    ],
)
def test_a_plan_that_its_participation_contradicts_is_refused(options, message):
    participation = tf_bandmf.CyclicPoisson(M, 100, 8)
    with pytest.raises(ValueError, match=message):
        tf_bandmf.plan(sampling=participation, **BUDGET, **options)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "certain"}, "kind must be one of"),
        ({"epsilon": float("nan")}, "epsilon must be finite and > 0"),
        ({"delta": 0.0}, "delta must be in"),
        ({"kind": "estimate", "confidence": 0.9}, "Only a bound has a confidence"),
    ],
)
def test_a_guarantee_is_valid_or_does_not_exist(fields, message):
    valid = {"epsilon": 1.0, "delta": 1e-5, "kind": "exact", "accountant": "test"}
    assert Guarantee(**valid).epsilon == 1.0
    with pytest.raises(ValueError, match=message):
        Guarantee(**{**valid, **fields})
