"""Participation objects."""

import pytest

from tf_bandmf import participation
from tf_bandmf.participation import FixedEpochOrder, MinSep


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
        (lambda: MinSep(0), "min_separation must be a whole number"),
        (lambda: MinSep(2.5), "min_separation must be a whole number"),
        (lambda: MinSep(3, 0), "max_participations must be a whole number"),
        (lambda: FixedEpochOrder(10, 11, 1), "batch_size must be <= num_examples"),
        (lambda: FixedEpochOrder(10, 0, 1), "batch_size must be a whole number"),
        (lambda: FixedEpochOrder(10, 5, 0), "epochs must be a whole number"),
        (
            lambda: FixedEpochOrder(10, 5, 1, order_seed=-1),
            "order_seed must be a whole number from 0 to 4294967295",
        ),
        (
            lambda: MinSep(11).validate_num_steps(10),
            "min_separation must be <= num_steps",
        ),
        (
            lambda: FixedEpochOrder(10, 5, 2).validate_num_steps(5),
            "are 4 steps, found num_steps = 5",
        ),
        (lambda: participation.from_config({"kind": "daily"}), "Unknown participation"),
    ],
)
def test_invalid_participations_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
