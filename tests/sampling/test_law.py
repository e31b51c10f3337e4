"""The law of each sampler, exactly: every outcome of its random words is enumerated.

The words are replaced by all values of a coarse grid of [0, 2^64), each as likely as the
other; what the samplers make of them is compared with the law that is accounted for.
"""

import collections
import fractions
import itertools
import math

import numpy as np
import pytest

import tf_bandmf
from tf_bandmf.sampling import sampled as sampled_lib
from tf_bandmf.sampling.sampled import schedule_for

CELLS = 4


def participations_by_words(monkeypatch, participation, num_steps, words_of_step):
    """The set of (step, example) for given words of each step; -1: of the whole run."""

    def words(seed, step, count):
        found = np.array(words_of_step[step], dtype=np.uint64)
        assert found.shape == (count,)
        return found

    monkeypatch.setattr(sampled_lib, "random_words", words)
    schedule = schedule_for(
        participation, num_steps, 7, np.arange(participation.num_examples)
    )
    return frozenset(
        (step, int(index))
        for step in range(num_steps)
        for index in schedule.example_indices(step)
    )


def grid(count):
    """All words in the middle of CELLS equal cells, for `count` examples."""
    values = [(2 * i + 1) << 61 for i in range(CELLS)]
    return list(itertools.product(values, repeat=count))


@pytest.mark.slow_cases("2-1-1-3")
@pytest.mark.parametrize(
    "num_examples, batch_size, parts, steps",
    [(2, 1, 1, 3), (4, 1, 1, 1), (4, 3, 1, 1), (4, 1, 2, 2)],
)
def test_cyclic_poisson_takes_everybody_independently(
    monkeypatch, num_examples, batch_size, parts, steps
):
    participation = tf_bandmf.CyclicPoisson(num_examples, batch_size, parts)
    q = fractions.Fraction(batch_size * parts, num_examples)
    outcomes = collections.Counter(
        participations_by_words(
            monkeypatch, participation, steps, dict(enumerate(words))
        )
        for words in itertools.product(grid(num_examples // parts), repeat=steps)
    )
    possible = [
        (step, example)
        for step in range(steps)
        for example in range(num_examples)
        if example % parts == step % parts
    ]
    total = sum(outcomes.values())
    law = {}
    for chosen in itertools.product([False, True], repeat=len(possible)):
        outcome = frozenset(pair for pair, take in zip(possible, chosen) if take)
        law[outcome] = math.prod(q if take else 1 - q for take in chosen)
    found = {key: fractions.Fraction(count, total) for key, count in outcomes.items()}
    assert found == {key: value for key, value in law.items() if value}


def test_fixed_size_takes_every_subset_of_its_part_equally_often(monkeypatch):
    participation = tf_bandmf.CyclicFixedSize(9, 2, 2)
    orders = list(itertools.permutations([5, 77, 1 << 40, 1 << 63]))
    outcomes = collections.Counter(
        participations_by_words(
            monkeypatch, participation, 2, dict(enumerate((first, second)))
        )
        for first in orders
        for second in orders
    )
    subsets = [list(itertools.combinations(range(part, 8, 2), 2)) for part in range(2)]
    law = {
        frozenset([(0, i) for i in first] + [(1, i) for i in second])
        for first in subsets[0]
        for second in subsets[1]
    }
    assert set(outcomes) == law and len(law) == 36
    assert set(outcomes.values()) == {len(orders) ** 2 // 36}


def test_balls_in_bins_takes_every_placement_equally_often(monkeypatch):
    participation = tf_bandmf.BallsInBins(4, 2, 3)
    values = [5 << 60, 6 << 60, (7 << 60) + 1, 9]
    outcomes = collections.Counter(
        participations_by_words(monkeypatch, participation, 6, {-1: words})
        for words in itertools.product(values, repeat=4)
    )
    law = {
        frozenset((epoch * 2 + bins[i], i) for i in range(4) for epoch in range(3))
        for bins in itertools.product(range(2), repeat=4)
    }
    assert set(outcomes) == law and set(outcomes.values()) == {16}


def test_shuffled_takes_every_order_equally_often(monkeypatch):
    participation = tf_bandmf.Shuffled(4, 2, 2)
    outcomes = collections.Counter(
        participations_by_words(monkeypatch, participation, 4, {-1: words})
        for words in itertools.permutations([3, 1 << 20, 1 << 50, (1 << 64) - 1])
    )
    law = {
        frozenset(
            (2 * epoch + (i not in first), i) for i in range(4) for epoch in range(2)
        )
        for first in itertools.combinations(range(4), 2)
    }
    assert set(outcomes) == law and set(outcomes.values()) == {4}


@pytest.mark.parametrize(
    "participation, num_steps",
    [
        (tf_bandmf.FixedEpochOrder(50, 7, 4), 32),
        (tf_bandmf.Shuffled(50, 7, 4), 32),
        (tf_bandmf.BallsInBins(50, 7, 4), 32),
        (tf_bandmf.CyclicPoisson(50, 6, 6), 40),
        (tf_bandmf.CyclicFixedSize(50, 6, 6), 40),
        (tf_bandmf.Poisson(50, 20), 40),
    ],
    ids=lambda value: getattr(value, "kind", None),
)
def test_realized_separation_and_participations(participation, num_steps):
    schedule = schedule_for(participation, num_steps, 7, np.arange(50))
    steps = collections.defaultdict(list)
    for batch in schedule.indices():
        assert len(set(batch.indices)) == len(batch.indices)
        for index in batch.indices:
            steps[int(index)].append(batch.step)
    gaps = [b - a for found in steps.values() for a, b in zip(found, found[1:])]
    assert gaps and min(gaps) >= participation.separation()
    most = max(len(found) for found in steps.values())
    assert most <= participation.participations(num_steps)
    fixed = participation.has_fixed_positions and participation.separation() > 1
    if fixed:
        assert all(gap % participation.separation() == 0 for gap in gaps)
