"""White-box audits of correct mechanisms give bounds that rarely exceed epsilon."""

import functools

import numpy as np
import pytest
from small_plans import planned, small_plan

import tf_bandmf
from tf_bandmf import audit

CONFIDENCE = 0.95
UNAMPLIFIED = ["identity", "lambda_cgd", "bisr:4", "bsr:4", "bsr:8", "tree"]


@functools.cache
def plan_of(mechanism, **changes):
    use = {"num_steps": 24, "sampling": tf_bandmf.MinSep(6, 4), "batch_size": 4}
    return planned(mechanism, **{**use, **changes})


@functools.cache
def sampled_plan(mechanism, sampling, delta=1e-3):
    return small_plan(mechanism, 40, 10, 6, delta=delta, sampling=sampling)


AMPLIFIED = [
    ("identity", "poisson"),
    ("bsr:2", "cyclic-poisson"),
    ("bsr:2", "b-min-sep"),
    ("bsr:4", "balls-in-bins"),
]


@pytest.mark.parametrize("mechanism", UNAMPLIFIED)
def test_the_canary_moves_the_mechanism_by_its_sensitivity(mechanism):
    for plan in (
        plan_of(mechanism),
        plan_of(mechanism, sampling=tf_bandmf.FixedEpochOrder(24, 4, 4)),
    ):
        pattern = audit.worst_pattern(plan.strategy.matrix, plan.participation)
        steps = np.flatnonzero(pattern)
        assert len(steps) <= 4 and np.all(np.diff(steps) >= 6)
        assert np.all(np.abs(pattern[steps]) == 1.0)
        moved = np.linalg.norm(plan.strategy.matrix.matmul(pattern))
        assert moved <= plan.sensitivity.value * (1 + 1e-9)
        if plan.sensitivity.is_exact:
            assert moved >= 0.999 * plan.sensitivity.value
        canaries = audit.GradientCanaries.for_plan(plan, 8, seed=0)
        expected = moved / plan.sensitivity.value / plan.noise_multiplier
        np.testing.assert_allclose(canaries.signals, expected, rtol=1e-6)


def test_directions_of_ones_own_see_what_coordinates_see():
    plan = plan_of("bsr:4")
    rng = np.random.default_rng(0)
    directions = np.linalg.qr(rng.normal(size=(64, 64)))[0]
    turned = audit.GradientCanaries.for_plan(plan, 64, seed=0, directions=directions)
    straight = audit.GradientCanaries.for_plan(plan, 64, seed=0)
    np.testing.assert_allclose(turned.sums(), straight.sums() @ directions, atol=1e-12)
    released = straight.simulated(1)
    np.testing.assert_allclose(
        turned.scores(released @ directions), straight.scores(released), atol=1e-6
    )
    with pytest.raises(ValueError, match="orthonormal"):
        audit.GradientCanaries.for_plan(plan, 64, seed=0, directions=np.ones((2, 64)))
    with pytest.raises(ValueError, match="num_canaries"):
        audit.GradientCanaries.for_plan(plan, 64, seed=0, num_canaries=65)
    with pytest.raises(ValueError, match="shape"):
        straight.scores(released[1:])


@pytest.mark.slow_cases(
    "1.0-65536-bisr:4", "1.0-65536-identity", "1.0-65536-lambda_cgd"
)
@pytest.mark.attack(
    "Epsilon of correct mechanisms, white-box",
    tried="A matched filter finds 8192 canary gradients (65,536 at epsilon = 1) in the "
    "noisy sums of one run; Clopper-Pearson bounds on Gaussian DP, at 95% confidence.",
    area="audit",
)
@pytest.mark.invariant(3, 12)
@pytest.mark.parametrize("mechanism", UNAMPLIFIED)
@pytest.mark.parametrize(
    ("epsilon", "canaries"), [(1.0, 65_536), (4.0, 8192), (8.0, 8192)]
)
def test_a_correct_mechanism_is_audited_to_seven_tenths_of_epsilon(
    mechanism, epsilon, canaries, figure
):
    plan = plan_of(mechanism, epsilon=epsilon)
    canaries = audit.GradientCanaries.for_plan(plan, canaries, seed=0)
    result = canaries.audit(canaries.simulated(1))
    assert result.epsilon <= plan.epsilon and not result.contradicts
    if plan.sensitivity.is_exact:
        assert result.epsilon >= 0.7 * plan.epsilon
    figure(f"{mechanism}: {result.epsilon / epsilon:.2f} of epsilon = {epsilon:g}")


@pytest.mark.slow_cases("bsr:2-cyclic-poisson", "bsr:2-b-min-sep", "identity-poisson")
@pytest.mark.parametrize(("mechanism", "sampling"), AMPLIFIED)
def test_an_amplified_mechanism_is_audited_under_its_sampler(mechanism, sampling):
    plan = sampled_plan(mechanism, sampling)
    canaries = audit.GradientCanaries.for_plan(plan, 16_384, seed=0)
    result = canaries.audit(canaries.simulated(1))
    assert 0.3 * plan.epsilon <= result.epsilon <= plan.epsilon
    # The plan claims amplification by sampling, but these canaries participate as often
    # as possible.
    fixed = np.zeros(plan.num_steps)
    fixed[:: plan.participation.separation()] = 1.0
    careless = audit.GradientCanaries(
        plan,
        16_384,
        np.broadcast_to(fixed, canaries.patterns.shape),
        canaries.included,
    )
    if sampling != "balls-in-bins":
        broken = canaries.scores(careless.simulated(1))
        assert broken[canaries.included].mean() > 2.0 * (
            canaries.scores(canaries.simulated(1))[canaries.included].mean()
        )


def contradictions(plan, runs, canaries=512):
    actual = []
    for run in range(runs):
        trial = audit.GradientCanaries.for_plan(plan, canaries, seed=2 * run)
        result = trial.audit(trial.simulated(2 * run + 1), confidence=CONFIDENCE)
        actual.append(result.contradicts)
    return sum(actual)


@pytest.mark.slow
@pytest.mark.attack(
    "Bounds above epsilon",
    tried="200 audited runs of a correct mechanism: at most 5% of the runs may have a "
    "bound above epsilon.",
    area="audit",
)
@pytest.mark.invariant(12)
@pytest.mark.parametrize(
    ("mechanism", "sampling"), [("lambda_cgd", None), ("bsr:4", None), *AMPLIFIED]
)
def test_bounds_are_above_epsilon_as_rarely_as_stated(mechanism, sampling, figure):
    plan = sampled_plan(mechanism, sampling) if sampling else plan_of(mechanism)
    above = contradictions(plan, 200)
    figure(f"{mechanism}, {sampling}: {above} of 200")
    assert above <= 0.05 * 200


@pytest.mark.parametrize("mechanism", UNAMPLIFIED)
def test_too_little_noise_contradicts(mechanism):
    plan = plan_of(mechanism)
    canaries = audit.GradientCanaries.for_plan(plan, 4096, seed=0)
    sums = canaries.sums()
    released = sums + 0.5 * (canaries.simulated(1) - sums)
    result = canaries.audit(released)
    if plan.sensitivity.is_exact:
        assert result.contradicts and "CONTRADICTS" in str(result)
    # With a twentieth of the noise, even the bound computed from guesses contradicts
    # the plan, although that bound assumes nothing about the mechanism.
    released = sums + 0.05 * (canaries.simulated(1) - sums)
    result = canaries.audit(released, num_guesses=4096)
    assert result.bounds[0].epsilon > plan.epsilon
