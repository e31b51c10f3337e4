"""Tests the argument checks, patterns and descriptions of participation objects."""

import pytest

from tf_bandmf.participation import (
    BallsInBins,
    CyclicFixedSize,
    CyclicPoisson,
    FixedEpochOrder,
    MinSep,
    Poisson,
)

BINS = BallsInBins(1000, 30, 4)


def test_fixed_epoch_order_counts_steps():
    order = FixedEpochOrder(num_examples=100, batch_size=30, epochs=5)
    assert (order.steps_per_epoch, order.num_steps) == (4, 20)
    assert (order.separation(), order.participations(20)) == (4, 5)


def test_min_sep_allows_at_most_what_the_separation_allows():
    assert MinSep(4).participations(10) == 3
    assert MinSep(4, 2).participations(10) == 2
    assert MinSep(4, 9).participations(10) == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: MinSep(11).validate_num_steps(10),
            "min_separation must be <= num_steps",
        ),
        (
            lambda: FixedEpochOrder(10, 5, 2).validate_num_steps(5),
            "must be 4 for 2 epochs of 2 steps, found 5",
        ),
        (lambda: CyclicPoisson(100, 30, 4), "num_parts must be <= .* = 3"),
        (
            lambda: CyclicPoisson(1000, 10, 8).validate_num_steps(7),
            "num_steps must be >= num_parts",
        ),
    ],
)
def test_invalid_participations_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_worst_case_participations():
    cyclic = CyclicPoisson(1000, 10, 8)
    assert cyclic.separation() == 8 and cyclic.participations(100) == 13
    assert cyclic.sampling_probability == pytest.approx(0.08)
    assert Poisson(1000, 10).participations(100) == 100
    assert BINS.num_bins == 34 and BINS.num_steps == 136
    assert BINS.separation() == 34 and BINS.participations(136) == 4
    assert "3 examples are never used" in CyclicFixedSize(1003, 10, 8).describe()
