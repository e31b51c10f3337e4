"""Selection of who is there and may take part; its record survives."""

import copy

import pytest

import tf_bandmf
from tf_bandmf_federated.cohorts import AvailableCohorts

HERE = ["a", "b", "c", "d", "e", "f"]


def make(here=HERE, b=2, k=2, **options):
    return AvailableCohorts.of(lambda: here, tf_bandmf.MinSep(b, k), **options)


def test_nobody_comes_too_early_or_too_often():
    cohorts, came = make(), {}
    for number in range(8):
        for name in cohorts.select(2).names:
            came.setdefault(name, []).append(number)
    assert sum(map(len, came.values())) == 12  # all six, twice
    for rounds in came.values():
        assert len(rounds) == 2 and rounds[1] - rounds[0] >= 2
    assert cohorts.measured().max_participations == 2


def test_fewer_are_selected_where_fewer_may():
    cohorts = make()
    assert len(cohorts.select(4).names) == 4
    found = cohorts.select(4)
    assert (len(found.names), found.available, found.eligible) == (2, 6, 2)


def test_it_is_saved_and_a_copy_goes_its_own_way():
    cohorts = make()
    cohorts.select(3)
    restored = type(cohorts).from_bytes(cohorts.to_bytes())
    assert restored.to_bytes() == cohorts.to_bytes()
    copied = copy.deepcopy(cohorts)
    copied.select(3)
    assert restored.to_bytes() == cohorts.to_bytes() != copied.to_bytes()
    assert not set(copied.cohort) & set(cohorts.cohort)


def test_a_round_that_was_begun_has_the_same_devices_again():
    cohorts = make()
    before = copy.deepcopy(cohorts)
    first = cohorts.select(3)
    again = before.select_again(first.names, 3)
    assert again.names == first.names
    assert before.to_bytes() == cohorts.to_bytes()
    with pytest.raises(ValueError, match="not of one run"):
        before.select_again(first.names, 3)


def test_digests_tell_cohorts_apart():
    cohorts = make()
    first, second = cohorts.select(3), cohorts.select(3)
    assert cohorts.digest_of_selected(first) != cohorts.digest_of_selected(second)


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="over_selection"):
        make(over_selection=0.9)
    with pytest.raises(TypeError, match=r"AvailableCohorts\.of"):
        AvailableCohorts()
    with pytest.raises(ValueError, match="twice"):
        make().count_round(["a", "a"])
    with pytest.raises(ValueError, match="no cohorts"):
        type(make()).from_bytes(b"{}")
