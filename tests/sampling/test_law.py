"""Computes the exact distribution of each sampler by enumerating its random words."""

import collections
import itertools
from fractions import Fraction

import numpy as np
import pytest

import tf_bandmf
from tf_bandmf.sampling.samplers import (
    WHOLE_RUN,
    FixedSizeSampler,
    RestSampler,
    Trials,
    uniform_numbers,
)

LARGEST = (1 << 64) - 1
# The probability of a successful trial may be below q by at most this relative amount.
TOLERANCE = Fraction(1, 2**25)


def fixed(words_of_step):
    """Returns a source of random words that returns the given words of each step.

    The words of the whole run are those of step -1 (`WHOLE_RUN`).
    """
    return lambda step, count: np.array(words_of_step[step][:count], np.uint64)


def cells(cuts):
    """Returns the smallest and the largest word between each pair of adjacent cuts."""
    edges = [0, *map(int, cuts), 1 << 64]
    return [(low, high - 1) for low, high in zip(edges, edges[1:]) if low < high]


def gaps_of(trials):
    """Computes the distribution of the first success, over all pairs of random words.

    From a table, the first two words of a run select the gap before the first success.
    For gaps beyond the table, `trials` would read further words; here, all of these
    have the maximum value, which lengthens no gap.
    """
    law = collections.Counter()
    for (a, last_a), (b, last_b) in itertools.product(
        cells(trials._blocks), cells(trials._within)
    ):
        places = {
            int(trials.successes(fixed({0: [*pair, *[LARGEST] * 4096]}), 0, 1000)[0])
            for pair in [(a, b), (last_a, last_b), (a, last_b)]
        }
        # All pairs of words from these two cells give the same result.
        assert len(places) == 1
        law[places.pop()] += Fraction((last_a - a + 1) * (last_b - b + 1), 1 << 128)
    return law


@pytest.mark.invariant(2)
@pytest.mark.parametrize("q", ["1/2", "3/8", "1/3", "1/10", "1/40"])
def test_trials_succeed_with_no_more_than_the_probability(q):
    q = Fraction(q)
    trials = Trials(q.numerator, q.denominator)
    law = gaps_of(trials)
    assert sum(law.values()) == 1
    # The last gap stands for all longer gaps, which further random words determine.
    table = trials._blocks.size * trials._length
    assert sorted(law) == list(range(table + 1))
    left, survives = Fraction(1), [Fraction(1)]
    for gap in range(table):
        assert q * (1 - TOLERANCE) < law[gap] / left <= q
        left -= law[gap]
        survives.append(left)

    def first(gap):
        """Returns the probability that the first success is at trial `gap` or later."""
        whole, rest = divmod(gap, table)
        return survives[table] ** whole * survives[rest]

    # Given the other five of six trials, a trial must succeed with probability <= q.
    # Thus, each outcome is compared with all outcomes that lack one of its successes.
    law = {}
    for taken in itertools.product([False, True], repeat=6):
        chance, begin = Fraction(1), 0
        for place in np.flatnonzero(taken).tolist():
            chance *= first(place - begin) - first(place - begin + 1)
            begin = place + 1
        law[taken] = chance * first(6 - begin)
    assert sum(law.values()) == 1
    for taken in law:
        for place in np.flatnonzero(taken):
            without = (*taken[:place], False, *taken[place + 1 :])
            given = law[taken] / (law[taken] + law[without])
            assert q * (1 - TOLERANCE) < given <= q


@pytest.mark.invariant(2)
@pytest.mark.parametrize("q", ["9/20", "512/10000000", "1/1000000", "2/10000000000"])
def test_rare_trials_succeed_with_no_more_than_the_probability(q):
    """The success probability of a rare trial is at most q, and not much smaller.

    The test checks random gaps between successes, and gaps at the edges of the tables
    that the sampler uses.
    """
    q = Fraction(q)
    trials = Trials(q.numerator, q.denominator)
    blocks, within, length = trials._blocks, trials._within, trials._length

    def least(cuts, number):
        """Returns the probability that a word is below at least `number` cut points."""
        if number == 0:
            return Fraction(1)
        return Fraction(int(cuts[-number]), 1 << 64) if number <= cuts.size else 0

    def survives(gap):
        a, b = divmod(gap, length)
        after = least(blocks, a + 1)
        return after + (least(blocks, a) - after) * least(within, b)

    whole = blocks.size * length
    gaps = [0, 1, length - 2, length - 1, length, whole - length - 1, whole - 1]
    gaps += np.random.default_rng(0).integers(0, whole, 100).tolist()
    for gap in gaps:
        chance = 1 - survives(gap + 1) / survives(gap)
        assert q * (1 - TOLERANCE) < chance <= q
    for gap in gaps:
        a, b = divmod(gap, length)
        word_a = 0 if a == blocks.size else int(blocks[-a - 1])
        pair = [word_a, int(within[-b - 1]) if b < within.size else 0]
        words = fixed({0: [*pair, *[LARGEST] * 4096]})
        assert trials.successes(words, 0, gap + 1).tolist() == [gap]


@pytest.mark.parametrize("num_examples, batch_size, parts", [(4, 3, 1), (4, 1, 4)])
def test_frequent_trials_have_a_word_each(num_examples, batch_size, parts):
    participation = tf_bandmf.CyclicPoisson(num_examples, batch_size, parts)
    q = Fraction(batch_size * parts, num_examples)
    values, size = [(2 * i + 1) << 61 for i in range(4)], num_examples // parts
    law = collections.Counter(
        tuple(participation.sampler(fixed({0: words})).example_indices(0))
        for words in itertools.product(values, repeat=size)
    )
    for taken, count in law.items():
        chance = q ** len(taken) * (1 - q) ** (size - len(taken))
        assert Fraction(count, 4**size) == chance


def test_numbers_below_a_bound_are_uniform():
    words = fixed({0: [LARGEST, 5, LARGEST, 7, 3, *range(60)]})
    # The largest of the 2^64 words is rejected, so each of the numbers 0, 1 and 2 gets
    # the same number of words.
    assert uniform_numbers(words, 0, 3, 3).tolist() == [2, 1, 0]
    assert LARGEST % 3 == 0
    assert uniform_numbers(words, 0, 3, 4).tolist() == [3, 1, 3]


@pytest.mark.parametrize("batch", [1, 2, 3, 4])
def test_fixed_size_takes_every_subset_of_its_part_equally_often(batch):
    subsets = collections.Counter()
    for numbers in itertools.product(range(4), repeat=5):
        wanted = min(batch, 4 - batch)
        if len(set(numbers)) < wanted:
            # Further words would choose the missing examples, uniformly by symmetry.
            continue
        words = fixed({7: [*numbers, *list(range(4)) * 20]})
        chosen = FixedSizeSampler(words, 9, batch, 2).example_indices(7)
        assert set(chosen % 2) == {1}
        subsets[tuple(chosen // 2)] += 1
    assert set(subsets) == set(itertools.combinations(range(4), batch))
    assert len(set(subsets.values())) == 1


def taken_in(participation, num_steps, words_of_step):
    sampler = participation.sampler(fixed(words_of_step))
    return frozenset(
        (step, int(index))
        for step in range(num_steps)
        for index in sampler.example_indices(step)
    )


def test_balls_in_bins_takes_every_placement_equally_often():
    participation = tf_bandmf.BallsInBins(4, 2, 3)
    values = [5 << 60, 6 << 60, (7 << 60) + 1, 9]
    outcomes = collections.Counter(
        taken_in(participation, 6, {WHOLE_RUN: words})
        for words in itertools.product(values, repeat=4)
    )
    law = {
        frozenset((epoch * 2 + bins[i], i) for i in range(4) for epoch in range(3))
        for bins in itertools.product(range(2), repeat=4)
    }
    assert set(outcomes) == law and set(outcomes.values()) == {16}


def test_shuffled_takes_every_order_equally_often():
    participation = tf_bandmf.Shuffled(4, 2, 2)
    outcomes = collections.Counter(
        taken_in(participation, 4, {WHOLE_RUN: words})
        for words in itertools.permutations([3, 1 << 20, 1 << 50, LARGEST])
    )
    law = {
        frozenset(
            (2 * epoch + (i not in first), i) for i in range(4) for epoch in range(2)
        )
        for first in itertools.combinations(range(4), 2)
    }
    assert set(outcomes) == law and set(outcomes.values()) == {4}


@pytest.mark.parametrize("separation", [1, 2, 3])
def test_who_rests_is_not_taken_and_nobody_else_is_left_out(separation):
    """An example is sampled if and only if its trial succeeds and it does not rest.

    An example rests for some steps after it was sampled, and may rest initially. The
    test enumerates all outcomes of the trials, and all lengths of the initial rest.
    """
    total, batch, steps = 8, 2, 6
    quarter = 1 << 62
    for rest, tried in itertools.product(
        range(separation), itertools.product([False, True], repeat=steps)
    ):
        # Each nonzero length of the initial rest is chosen by a quarter of all random
        # words. The remaining words choose length 0. The test uses the first and the
        # last word of each quarter.
        cell = separation - 1 if rest == 0 else rest - 1
        for word in (cell * quarter, (cell + 1) * quarter - 1):
            sampler = RestSampler(
                fixed({WHOLE_RUN: [word] * total}), total, batch, separation
            )
            sampler._trials.successes = lambda words, step, size, tried=tried: (
                np.arange(size if tried[step] else 0)
            )
            free = rest
            for step in range(steps):
                is_taken = tried[step] and free <= step
                free = step + separation if is_taken else free
                chosen = sampler.example_indices(step)
                assert chosen.tolist() == (list(range(total)) if is_taken else [])
