"""The samplers: distribution, resuming, secrecy, misuse.

Statistical tests use fixed seeds; were they drawn anew, each would fail by chance with
probability at most 1e-4.
"""

import itertools
import pickle

import numpy as np
import pytest
import scipy.stats

import tf_bandmf
from tf_bandmf.sampling.random_bits import random_words
from tf_bandmf.sampling.sampled import schedule_for

FALSE_ALARM = 1e-4


def seed(i):
    return int(i).to_bytes(32, "little")


def make(participation, num_steps, number=0, x=None):
    x = np.arange(participation.num_examples) if x is None else x
    return schedule_for(participation, num_steps, 7, x, seed=seed(number))


def test_poisson_marginals_and_independence():
    participation = tf_bandmf.Poisson(num_examples=4000, batch_size=1000)
    sampled = make(participation, 40)
    taken = np.zeros((40, 4000), bool)
    for step in range(40):
        taken[step, sampled.example_indices(step)] = True
    total = scipy.stats.binomtest(int(taken.sum()), taken.size, 0.25)
    assert total.pvalue > FALSE_ALARM
    # Per example: binomial counts.
    counts = np.bincount(taken.sum(axis=0), minlength=41)
    expected = 4000 * scipy.stats.binom.pmf(np.arange(41), 40, 0.25)
    low, high = 4, 17
    merged = [counts[:low].sum(), *counts[low:high], counts[high:].sum()]
    hoped = [expected[:low].sum(), *expected[low:high], expected[high:].sum()]
    assert scipy.stats.chisquare(merged, hoped).pvalue > FALSE_ALARM
    # Joint law of two steps and two examples: all 4 combinations.
    for pair in ((taken[:-1], taken[1:]), (taken[:, :-1], taken[:, 1:])):
        joint = np.bincount((2 * pair[0] + pair[1]).ravel(), minlength=4)
        law = np.array([9, 3, 3, 1]) / 16
        # Overlapping pairs are dependent; every second one is not.
        del joint
        axis = 0 if pair[0].shape[0] == 39 else 1
        odd = [np.take(p, range(0, p.shape[axis], 2), axis) for p in pair]
        joint = np.bincount((2 * odd[0] + odd[1]).ravel(), minlength=4)
        assert scipy.stats.chisquare(joint, law * joint.sum()).pvalue > FALSE_ALARM


def test_cyclic_poisson_respects_its_parts():
    participation = tf_bandmf.CyclicPoisson(num_examples=50, batch_size=4, num_parts=6)
    sampled = make(participation, 30)
    steps = [[] for _ in range(50)]
    for step in range(30):
        indices = sampled.example_indices(step)
        assert set(indices % 6) <= {step % 6}
        for index in indices:
            steps[index].append(step)
    gaps = [np.diff(s).min() for s in steps if len(s) > 1]
    assert gaps and min(gaps) >= participation.separation()


def test_cyclic_poisson_with_probability_one_takes_the_whole_part():
    participation = tf_bandmf.CyclicPoisson(num_examples=12, batch_size=3, num_parts=4)
    assert participation.sampling_probability == 1.0
    sampled = make(participation, 8)
    np.testing.assert_array_equal(sampled.example_indices(5), [1, 5, 9])


def test_cyclic_fixed_size_is_uniform_over_subsets():
    participation = tf_bandmf.CyclicFixedSize(11, batch_size=2, num_parts=2)
    assert participation.part_size == 5  # Example 10 is never used.
    subsets = {pair: 0 for pair in itertools.combinations(range(5), 2)}
    sampled = make(participation, 4000)
    for step in range(4000):
        indices = sampled.example_indices(step)
        assert set(indices % 2) == {step % 2} and indices.max() < 10
        subsets[tuple(indices // 2)] += 1
    assert scipy.stats.chisquare(list(subsets.values())).pvalue > FALSE_ALARM


def test_balls_in_bins_law_by_enumeration():
    participation = tf_bandmf.BallsInBins(num_examples=3, batch_size=1, epochs=2)
    counts = dict.fromkeys(itertools.product(range(3), repeat=3), 0)
    for number in range(2700):
        sampled = make(participation, 6, number)
        bins = np.empty(3, int)
        for step in range(6):
            bins[sampled.example_indices(step)] = step % 3
            np.testing.assert_array_equal(
                sampled.example_indices(step), sampled.example_indices(step % 3)
            )
        counts[tuple(bins)] += 1
    assert scipy.stats.chisquare(list(counts.values())).pvalue > FALSE_ALARM


def test_balls_in_bins_sizes_vary_and_every_example_comes_once_per_epoch():
    participation = tf_bandmf.BallsInBins(num_examples=1000, batch_size=50, epochs=3)
    sampled = make(participation, 60)
    epoch = [sampled.example_indices(step) for step in range(20)]
    assert np.ptp([len(batch) for batch in epoch]) > 0
    np.testing.assert_array_equal(np.sort(np.concatenate(epoch)), np.arange(1000))


def test_shuffled_is_uniform_over_orders():
    participation = tf_bandmf.Shuffled(num_examples=4, batch_size=1, epochs=2)
    counts = dict.fromkeys(itertools.permutations(range(4)), 0)
    for number in range(2400):
        sampled = make(participation, 8, number)
        order = [int(sampled.example_indices(step)[0]) for step in range(8)]
        assert order[:4] == order[4:]
        counts[tuple(order[:4])] += 1
    assert scipy.stats.chisquare(list(counts.values())).pvalue > FALSE_ALARM


def test_random_words_are_uniform_and_differ_by_step_and_seed():
    words = random_words(seed(3), 5, 10_000)
    uniform = words / 2.0**64
    assert scipy.stats.kstest(uniform, "uniform").pvalue > FALSE_ALARM
    assert scipy.stats.kstest(uniform**1.1, "uniform").pvalue < FALSE_ALARM
    for other in (random_words(seed(3), 6, 10_000), random_words(seed(4), 5, 10_000)):
        assert not np.any(words == other)
        assert abs(np.corrcoef(words, other)[0, 1]) < 0.04
    with pytest.raises(ValueError, match="32 bytes"):
        random_words(b"short", 0, 1)


PARTICIPATIONS = [
    tf_bandmf.Poisson(20, 5),
    tf_bandmf.CyclicPoisson(20, 3, 4),
    tf_bandmf.CyclicFixedSize(20, 3, 4),
    tf_bandmf.BallsInBins(20, 4, 3),
    tf_bandmf.Shuffled(20, 4, 3),
]


@pytest.mark.parametrize("participation", PARTICIPATIONS, ids=lambda p: p.kind)
def test_dataset_is_the_schedule_and_a_resumed_run_is_the_uninterrupted_one(
    participation,
):
    steps = 15
    x = np.arange(20)[:, None] * np.ones(2)
    sampled = schedule_for(participation, steps, 7, x, np.arange(20))
    batches = list(sampled.dataset())
    assert len(batches) == len(sampled) == steps
    for step, batch in enumerate(batches):
        np.testing.assert_array_equal(batch["y"], sampled.example_indices(step))
        np.testing.assert_array_equal(batch["x"][:, 0], batch["y"])
        assert int(batch["step"]) == step and int(batch["plan_id"]) == 7
    assert sampled.dataset().element_spec["x"].shape.as_list() == [None, 2]
    # Restarted from the secret seed; also within the same process.
    other = schedule_for(
        participation, steps, 7, x, np.arange(20), seed=sampled.secret_seed()
    )
    for continued in (other, sampled):
        for batch, expected in zip(continued.dataset(first_step=6), batches[6:]):
            np.testing.assert_array_equal(batch["y"], expected["y"])


def test_an_empty_batch_is_a_batch():
    participation = tf_bandmf.Poisson(num_examples=30, batch_size=1)
    x = np.zeros((30, 2), np.float32)
    sampled = schedule_for(participation, 50, 7, x, seed=seed(0))
    sizes = [batch["x"].shape[0] for batch in sampled.dataset()]
    assert len(sizes) == 50 and min(sizes) == 0


@pytest.mark.parametrize("participation", PARTICIPATIONS[3:], ids=lambda p: p.kind)
def test_a_fresh_seed_cannot_continue_a_run_whose_steps_share_randomness(participation):
    sampled = schedule_for(participation, 15, 7, np.arange(20))
    with pytest.raises(ValueError, match="secret_seed"):
        sampled.dataset(first_step=3)


def test_seeds_are_fresh_and_secret():
    first, second = (
        schedule_for(PARTICIPATIONS[0], 9, 7, np.arange(20)) for _ in range(2)
    )
    assert first.secret_seed() != second.secret_seed()
    assert first.secret_seed()[:32].hex() not in repr(first)
    with pytest.raises(TypeError, match="secret"):
        pickle.dumps(first)


def test_wrong_data_are_refused():
    with pytest.raises(ValueError, match="The plan is for 20 examples"):
        schedule_for(PARTICIPATIONS[0], 9, 7, np.arange(21))
    with pytest.raises(TypeError, match="caller makes the batches"):
        schedule_for(tf_bandmf.MinSep(3), 9, 7, np.arange(20))
    with pytest.raises(ValueError, match="must be what secret_seed"):
        schedule_for(PARTICIPATIONS[0], 9, 7, np.arange(20), seed=b"1234")
    with pytest.raises(ValueError, match="step must be in"):
        make(PARTICIPATIONS[0], 9).example_indices(9)
    with pytest.raises(ValueError, match="no secret seed"):
        schedule_for(
            tf_bandmf.FixedEpochOrder(20, 4, 3), 15, 7, np.arange(20), seed=seed(0)
        )


@pytest.mark.invariant(8)
def test_a_seed_that_the_caller_chose_is_refused():
    arguments = {"epsilon": 2.0, "delta": 1e-5, "num_steps": 8}
    participation = tf_bandmf.Poisson(num_examples=20, batch_size=4)
    plan = tf_bandmf.plan("identity", participation=participation, **arguments)
    x = np.arange(20)
    drawn = plan.batches(x)
    forged = drawn.secret_seed()[:-1] + bytes([drawn.secret_seed()[-1] ^ 1])
    for known in (
        bytes(32),
        bytes(48),
        b"",
        np.random.default_rng(0).bytes(48),
        forged,
    ):
        with pytest.raises(ValueError, match="amplifies nothing"):
            plan.batches(x, sampler_seed=known)
    again = plan.batches(x, sampler_seed=drawn.secret_seed())
    for step in range(8):
        np.testing.assert_array_equal(
            again.example_indices(step), drawn.example_indices(step)
        )
    assert again.secret_seed() == drawn.secret_seed()


@pytest.mark.invariant(8)
def test_a_chosen_seed_needs_a_plan_for_tests_which_says_so():
    participation = tf_bandmf.Poisson(num_examples=20, batch_size=4)
    plan = tf_bandmf.plan(
        "identity",
        epsilon=2.0,
        delta=1e-5,
        num_steps=8,
        participation=participation,
        test_seed=0,
    )
    first, second = (
        plan.batches(np.arange(20), sampler_seed=bytes(32)) for _ in range(2)
    )
    for step in range(8):
        np.testing.assert_array_equal(
            first.example_indices(step), second.example_indices(step)
        )
    assert "NONE" in str(plan.statement())
