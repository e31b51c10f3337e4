"""Cohorts consist of available devices that the ledger permits to take part."""

import collections
import random
import tempfile

import hypothesis
import pytest
from hypothesis import strategies as st
from ledgers import begin_round

import tf_bandmf
from tf_bandmf_federated import cohorts as cohorts_module
from tf_bandmf_federated.cohorts import Cohorts
from tf_bandmf_federated.ledger import Ledger

HERE = ["a", "b", "c", "d", "e", "f"]


def make(ledger, here=HERE, b=2, k=2, **options):
    return Cohorts(ledger, lambda round_number: here, tf_bandmf.MinSep(b, k), **options)


def begin(cohorts, ledger, k):
    """Selects up to k devices for the next round, and records the round's start."""
    number = len(ledger.rounds)
    actual = cohorts.select(number, k)
    begin_round(ledger, number, actual.names)
    return actual


@hypothesis.settings(deadline=None, derandomize=True, max_examples=20)
@hypothesis.given(
    st.lists(st.sets(st.sampled_from(HERE)), min_size=10, max_size=10),
    st.integers(1, 3),
)
@pytest.mark.invariant(2)
def test_who_is_selected_is_there_and_comes_neither_too_early_nor_too_often(
    there, size
):
    b, k, history = 3, 2, collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, Ledger(f"{folder}/l", {}) as ledger:
        for number, here in enumerate(there):
            allowed = {
                name
                for name in here
                if len(history[name]) < k
                and (not history[name] or number - history[name][-1] >= b)
            }
            names = begin(make(ledger, sorted(here), b, k), ledger, size).names
            assert set(names) <= allowed and len(names) == min(size, len(allowed))
            for name in names:
                history[name].append(number)
        measured = ledger.measured(10)
    came = {name: rounds for name, rounds in history.items() if rounds}
    assert measured.num_clients == len(came)
    assert measured.num_participations == sum(map(len, came.values()))
    assert measured.max_participations <= k
    assert measured.min_separation is None or measured.min_separation >= b


def test_a_name_that_comes_twice_is_one_device(ledger):
    actual = make(ledger, ["a", "a", "b"]).select(0, 3)
    assert actual.names == ("a", "b") and actual.eligible == 2


def test_a_round_is_selected_again_as_it_was_begun(ledger):
    cohorts = make(ledger)
    first = begin(cohorts, ledger, 3)
    second = begin(cohorts, ledger, 3)
    for number, selected in enumerate((first, second)):
        again = cohorts.select_again(number, selected.names)
        assert again.names == selected.names
        assert again.past.tolist() == selected.past.tolist()
    with pytest.raises(ValueError, match="ledger was changed"):
        cohorts.select_again(1, first.names)


def test_devices_of_an_interrupted_round_are_searched_for(ledger):
    here, looks = ["b"], []

    def search():
        looks.append(len(here))
        here.append("ca"[len(here) - 1])
        return True

    actual = make(ledger, here, search=search).select_again(0, ["a"])
    assert actual.names == ("a",) and looks == [1, 2]
    never = make(ledger, ["b"]).select_again(0, ["a"])
    assert never.names == ("a",)


def test_it_waits_until_it_is_told_not_to(ledger):
    seen, here = [], ["a"]

    def wait(available, eligible):
        seen.append((available, eligible))
        here.append(f"new {len(here)}")
        return eligible < 3

    actual = make(ledger, here, enough=3, wait=wait).select(0, 1)
    assert seen == [(1, 1), (2, 2), (3, 3)] and len(actual.names) == 1


def test_selection_is_uniform_among_the_eligible(ledger, monkeypatch):
    # With this limit, the devices are looked up in several queries.
    monkeypatch.setattr(cohorts_module, "_LOOKED_UP", 4)
    generator = random.Random(5)
    monkeypatch.setattr(random, "Random", lambda seed: generator)
    cohorts = make(ledger, [str(i) for i in range(12)], b=2, k=9)
    resting = set(begin(cohorts, ledger, 4).names)
    counts = collections.Counter()
    for _ in range(2000):
        counts.update(cohorts.select(1, 2).names)
    assert not resting & set(counts)
    # 2,000 selections of 2 out of 8 devices select each device about 500 times, with a
    # standard deviation of about 20.
    assert len(counts) == 8 and all(abs(n - 500) < 100 for n in counts.values())
