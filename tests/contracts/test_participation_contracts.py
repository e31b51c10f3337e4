"""Every registered participation has a consistent sampler, accountant and plan."""

import dataclasses
import math

import numpy as np
import pytest
from small_plans import planned, small_plan

import tf_bandmf
from tf_bandmf import participation as lib
from tf_bandmf.sampling.samplers import random_words

N = 16
KINDS = sorted(lib.PARTICIPATIONS)
SEEDS = 40


@pytest.fixture(params=KINDS, scope="module")
def participation(request):
    return lib.PARTICIPATIONS[request.param].example(N)


@pytest.fixture(scope="module")
def plan(participation):
    return planned("identity", num_steps=N, sampling=participation, delta=1e-4)


def words(seed):
    secret = int(seed).to_bytes(32, "little")
    return lambda step, count: random_words(secret, step, count)


def test_it_is_rebuilt_from_its_configuration(participation):
    again = lib.from_config(participation.to_config())
    assert again == participation and type(again) is type(participation)
    assert dataclasses.is_dataclass(participation)
    with pytest.raises(dataclasses.FrozenInstanceError):
        participation.num_examples = 1


def test_it_has_a_sampler_or_says_that_the_caller_samples(participation, plan):
    if participation.has_schedule:
        assert participation.sampler(words(0)).example_indices(0).dtype == np.int64
        return
    for call in (
        lambda: participation.sampler(words(0)),
        lambda: participation.largest_batch_size(N, 1e-12),
        lambda: plan.batches(np.arange(10)),
    ):
        with pytest.raises(TypeError, match="the caller must compose the batches"):
            call()


@pytest.mark.invariant(2)
def test_the_sampler_takes_examples_only_as_the_participation_says(
    participation,
):
    if not participation.has_schedule:
        pytest.skip("the caller samples")
    b, k = participation.separation(), participation.participations(N)
    largest = participation.largest_batch_size(N, 1e-9)
    sizes = []
    for seed in range(SEEDS):
        sampler = participation.sampler(words(seed))
        steps = [[] for _ in range(participation.num_examples)]
        for step in range(N):
            chosen = sampler.example_indices(step)
            assert len(set(chosen.tolist())) == chosen.size <= largest
            sizes.append(chosen.size)
            for example in chosen:
                steps[example].append(step)
        for taken in steps:
            assert len(taken) <= k
            assert all(gap >= b for gap in np.diff(taken))
            if participation.has_fixed_positions:
                assert all(gap % b == 0 for gap in np.diff(taken))
        # The sample depends only on the random words and the step, not on the order in
        # which steps are requested.
        again = participation.sampler(words(seed))
        np.testing.assert_array_equal(
            again.example_indices(N - 1), sampler.example_indices(N - 1)
        )
    # A step divides the noisy sum by a public constant, which must be the mean batch
    # size. The seeds are fixed. The standard error is computed from the number of runs,
    # not of batches, because the batches of one run are dependent.
    expected = participation.expected_batch_size()
    error = np.std(sizes) / math.sqrt(SEEDS)
    assert abs(np.mean(sizes) - expected) <= 6.0 * error + 0.05 * expected


def test_calibrated_noise_gives_the_budget_and_less_noise_does_not(participation):
    strategy = tf_bandmf.strategies.identity(N)
    accountant = participation.accountant(strategy.matrix)
    actual = accountant.calibrate(2.0, 1e-4)
    claim = actual.guarantee
    assert (claim.accountant, claim.kind, claim.adjacency) in accountant.claims
    accountant.validate(actual.noise_stddev, claim)
    again = accountant.guarantee(actual.noise_stddev, 1e-4)
    assert again.epsilon == pytest.approx(2.0, rel=0.03)
    assert accountant.guarantee(0.7 * actual.noise_stddev, 1e-4).epsilon > 2.0
    with pytest.raises(ValueError, match="does not give its epsilon"):
        accountant.validate(0.7 * actual.noise_stddev, claim)


def test_noise_is_in_units_of_the_raw_strategy(participation):
    """The strategy 3 C needs three times the noise of C: no accountant rescales C."""
    one = tf_bandmf.strategies.identity(N).matrix
    three = tf_bandmf.matrices.ToeplitzBanded([3.0], N)
    small = participation.accountant(one).calibrate(2.0, 1e-4)
    large = participation.accountant(three).calibrate(2.0, 1e-4)
    assert large.noise_stddev == pytest.approx(3.0 * small.noise_stddev, rel=1e-3)


def test_its_epsilon_grows_with_the_steps_and_as_delta_falls(plan):
    actual = [plan.epsilon_after(steps) for steps in (0, 1, N // 2, N)]
    assert actual[0] == 0.0 < actual[2] and actual[-1] == plan.epsilon
    assert all(a <= b + 1e-9 for a, b in zip(actual, actual[1:]))
    curve = plan.epsilon_curve([1e-3, plan.delta, 1e-6])
    more, same, less = (point.epsilon for point in curve)
    assert more < same == pytest.approx(plan.epsilon, rel=0.02) and same < less
    assert {(p.kind, p.accountant) for p in curve} == {(plan.kind, plan.accountant)}


@pytest.mark.invariant(12)
def test_a_plan_of_it_with_too_little_noise_is_refused(plan):
    config = plan.to_config()
    config["noise_multiplier"] *= 0.7
    with pytest.raises(ValueError, match="does not give its epsilon"):
        tf_bandmf.Plan.from_config(config)


def test_a_plan_of_it_is_saved_and_has_its_batches(participation, plan, tmp_path):
    assert plan.noise_stddev > 0.0 and plan.num_steps == N
    path = str(tmp_path / "plan.json")
    plan.save(path)
    again = tf_bandmf.Plan.load(path)
    assert again.fingerprint == plan.fingerprint
    assert again.participation == participation
    assert participation.describe() in str(plan.statement())
    if participation.has_schedule:
        batches = plan.batches(np.arange(participation.num_examples))
        assert batches.num_steps == N
        assert len(list(batches.indices())) == N


@pytest.mark.parametrize("name", sorted(lib.NAMED))
def test_a_named_sampling_is_planned_from_examples_and_epochs(name):
    plan = small_plan("identity", 80, 20, 4, epsilon=2.0, delta=1e-4, sampling=name)
    assert isinstance(plan.participation, lib.NAMED[name])
    assert plan.num_steps == N and plan.expected_batch_size == 20.0


def test_a_participation_that_forgets_a_method_is_refused_with_its_name():
    class Lottery(lib.Participation):
        kind = "lottery"

    with pytest.raises(TypeError, match="Lottery lacks the methods describe, example"):
        lib.register(Lottery)
    with pytest.raises(ValueError, match="Again and Shuffled share the name"):
        lib.register(type("Again", (lib.Shuffled,), {}))
    amplified = type("Bold", (lib.MinSep,), {"is_amplified": True, "kind": "bold"})
    with pytest.raises(TypeError, match="Bold must implement accountant"):
        lib.register(amplified)
    assert sorted(lib.PARTICIPATIONS) == KINDS
