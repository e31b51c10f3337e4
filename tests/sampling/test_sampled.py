"""Tests samplers: their distribution, resuming, secrecy, and checks.

Statistical tests use fixed seeds. With random seeds, each test would fail by chance
with a probability of at most 1e-4.
"""

import functools
import hashlib
import pickle

import numpy as np
import pytest
import scipy.stats
from small_plans import schedule_for, small_plan

import tf_bandmf
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.sampling.samplers import random_words

FALSE_ALARM = 1e-4
# The expected SHA-256 digest of the indices of examples that samplers choose.
SAMPLES = "85080f747998d161121a9107e8d8378533c0aa30a953999ffe46646dc4e76f3b"


def seed(number):
    return NoiseKey.for_testing(number).sampler_seed()


def sampler_of(participation, number=0):
    return participation.sampler(functools.partial(random_words, seed(number)))


@pytest.mark.invariant(11)
@pytest.mark.parametrize("batch_size", [2, 20, 30, 33])
def test_rests_are_the_same_wherever_a_run_goes_on(batch_size):
    """In b-min-sep sampling, samples do not depend on the step at which a run resumes.

    With batches of 33, nearly every example is sampled as soon as its rest ends.
    """
    participation = tf_bandmf.BMinSepSampling(100, batch_size, 3)
    sampler = sampler_of(participation)
    straight = [sampler.example_indices(step) for step in range(600)]
    for step in (0, 1, 47, 48, 49, 300, 599, 598, 12):
        resumed = sampler_of(participation).example_indices(step)
        np.testing.assert_array_equal(resumed, straight[step])
        np.testing.assert_array_equal(sampler.example_indices(step), straight[step])


def test_a_step_costs_a_batch_and_not_the_data():
    """A step draws fewer than 1,000 random words, even to sample from 10^9 examples."""
    drawn = []

    def words(step, count):
        drawn.append(count)
        return random_words(seed(0), step, count)

    for participation in (
        tf_bandmf.Poisson(10**9, 100),
        tf_bandmf.CyclicFixedSize(10**9, 100, 4),
    ):
        assert 50 < participation.sampler(words).example_indices(10**6).size < 200
    assert max(drawn) < 1000


def test_samples_are_the_same_on_every_machine():
    digest = hashlib.sha256()
    for participation in (
        tf_bandmf.Poisson(10**7, 512),
        tf_bandmf.Poisson(1000, 900),
        tf_bandmf.CyclicPoisson(1000, 7, 3),
        tf_bandmf.CyclicFixedSize(1000, 100, 3),
        tf_bandmf.CyclicFixedSize(1000, 300, 3),
        tf_bandmf.BMinSepSampling(1000, 100, 4),
        tf_bandmf.BallsInBins(1000, 100, 3),
        tf_bandmf.Shuffled(1000, 100, 3),
    ):
        sampler = sampler_of(participation)
        for step in (0, 1, 2, 40, 41):
            digest.update(sampler.example_indices(step).astype("<i8").tobytes())
    assert digest.hexdigest() == SAMPLES


def test_random_words_are_uniform_and_differ_by_step_and_seed():
    words = random_words(seed(3), 5, 10_000)
    uniform = words / 2.0**64
    assert scipy.stats.kstest(uniform, "uniform").pvalue > FALSE_ALARM
    assert scipy.stats.kstest(uniform**1.1, "uniform").pvalue < FALSE_ALARM
    np.testing.assert_array_equal(random_words(seed(3), 5, 10), words[:10])
    for other in (random_words(seed(3), 6, 10_000), random_words(seed(4), 5, 10_000)):
        assert not np.any(words == other)
        assert abs(np.corrcoef(words, other)[0, 1]) < 0.04
    with pytest.raises(ValueError, match="32 bytes"):
        random_words(b"short", 0, 1)


PARTICIPATIONS = [
    tf_bandmf.Poisson(20, 5),
    tf_bandmf.CyclicPoisson(20, 3, 4),
    tf_bandmf.CyclicFixedSize(20, 3, 4),
    tf_bandmf.BMinSepSampling(20, 3, 4),
    tf_bandmf.BallsInBins(20, 4, 3),
    tf_bandmf.Shuffled(20, 4, 3),
]


@pytest.mark.parametrize(
    "participation",
    [*PARTICIPATIONS, tf_bandmf.FixedEpochOrder(20, 4, 3)],
    ids=lambda p: p.kind,
)
def test_dataset_is_the_schedule_and_a_resumed_run_is_the_uninterrupted_one(
    participation,
):
    steps = 15
    x = np.arange(20)[:, None] * np.ones(2)
    sampled = schedule_for(participation, steps, 7, x, np.arange(20)).join(seed(1))
    batches = list(sampled.dataset())
    assert len(batches) == len(sampled) == steps
    for step, batch in enumerate(batches):
        np.testing.assert_array_equal(batch["y"], sampled.example_indices(step))
        np.testing.assert_array_equal(batch["x"][:, 0], batch["y"])
        assert int(batch["step"]) == step and int(batch["plan_id"]) == 7
    assert sampled.dataset().element_spec["x"].shape.as_list() == [None, 2]
    # A run can be resumed from its seed, with a new schedule or with the same schedule.
    other = schedule_for(participation, steps, 7, x, np.arange(20)).join(seed(1))
    for continued in (other, sampled):
        for batch, expected in zip(continued.dataset(first_step=6), batches[6:]):
            np.testing.assert_array_equal(batch["y"], expected["y"])


@pytest.mark.parametrize("participation", PARTICIPATIONS[3:], ids=lambda p: p.kind)
def test_a_fresh_seed_cannot_continue_a_run_whose_steps_share_randomness(participation):
    sampled = schedule_for(participation, 15, 7, np.arange(20))
    for begin in (sampled.dataset, lambda step: next(sampled.indices(step))):
        with pytest.raises(ValueError, match=r"join\(key.sampler_seed\(\)\)"):
            begin(3)
    begun = [batch.indices.tolist() for batch in sampled.indices()]
    assert [batch.indices.tolist() for batch in sampled.indices(3)] == begun[3:]


@pytest.mark.invariant(10)
def test_seeds_are_fresh_and_secret():
    first, second = (schedule_for(PARTICIPATIONS[0], 9, 7, np.arange(20)) for _ in "ab")
    samples = [[b.indices.tolist() for b in s.indices()] for s in (first, second)]
    assert samples[0] != samples[1] and first.schedule_id != second.schedule_id
    with pytest.raises(TypeError, match="secret"):
        pickle.dumps(first)


@pytest.mark.invariant(8)
@pytest.mark.parametrize("sampling", ["poisson", "shuffled"])
def test_a_sample_follows_from_a_key_and_from_nothing_that_the_caller_chose(sampling):
    plan = small_plan("identity", 20, 4, 2, epsilon=2.0, sampling=sampling)
    batches = plan.batches(np.arange(20))
    for chosen in (bytes(32), b"", np.random.default_rng(0).bytes(32)):
        with pytest.raises(TypeError, match="secret seed of a noise key"):
            batches.join(chosen)

    def sample(key):
        return [b.indices.tolist() for b in batches.join(key.sampler_seed()).indices()]

    keys = [NoiseKey.from_operating_system() for _ in range(2)]
    assert sample(keys[0]) == sample(keys[0]) != sample(keys[1])
