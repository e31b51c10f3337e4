"""Participations with a random sampler."""

import pytest

import tf_bandmf
from tf_bandmf import participation as lib

ALL = [
    tf_bandmf.Poisson(1000, 10),
    tf_bandmf.CyclicPoisson(1000, 10, 8),
    tf_bandmf.CyclicFixedSize(1003, 10, 8),
    tf_bandmf.BallsInBins(1000, 30, 4),
    tf_bandmf.Shuffled(1000, 30, 4),
]


def test_worst_case_participations():
    cyclic = tf_bandmf.CyclicPoisson(1000, 10, 8)
    assert cyclic.separation() == 8 and cyclic.participations(100) == 13
    assert cyclic.sampling_probability == pytest.approx(0.08)
    assert tf_bandmf.Poisson(1000, 10).participations(100) == 100
    bins = tf_bandmf.BallsInBins(1000, 30, 4)
    assert bins.num_bins == 34 and bins.num_steps == 136
    assert bins.separation() == 34 and bins.participations(136) == 4


def test_descriptions_say_who_enforces_and_what_is_claimed():
    for participation in ALL:
        assert "batch schedule enforces" in participation.describe()
    claims = [p.amplification() for p in ALL]
    assert "No amplification" in claims.pop()
    assert all("mplification by" in claim for claim in claims)
    assert "3 examples are never used" in ALL[2].describe()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: tf_bandmf.Poisson(10, 11), "batch_size must be <="),
        (lambda: tf_bandmf.Poisson(10, 2, num_parts=2), "Use CyclicPoisson"),
        (lambda: tf_bandmf.CyclicPoisson(100, 30, 4), "num_parts must be <= .* = 3"),
        (lambda: tf_bandmf.CyclicFixedSize(100, 30, 4), "num_parts must be <= .* = 3"),
        (lambda: tf_bandmf.CyclicPoisson(100, 0, 4), "batch_size must be a whole"),
        (lambda: ALL[1].validate_num_steps(7), "num_steps must be >= num_parts"),
        (lambda: ALL[3].validate_num_steps(100), "are 136 steps, found"),
        (lambda: lib.from_config({"kind": "bernoulli"}), "Unknown participation"),
    ],
)
def test_impossible_batches_parts_and_steps_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
