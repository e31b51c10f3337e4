"""Who may take part, by what is known of the past. No engine."""

import collections
import json

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import tf_bandmf
from tf_bandmf_federated import measure_participation
from tf_bandmf_federated.participation_table import ParticipationTable


def table_trace(b, k, rounds):
    """Takes everybody that is allowed, of those that are there; returns the record."""
    table = ParticipationTable("abcde", tf_bandmf.MinSep(b, k))
    record, history = {}, collections.defaultdict(list)
    for round_number, present in enumerate(rounds):
        eligible = table.eligible(round_number)
        for client in range(5):
            past = history[client]
            free = not past or round_number - past[-1] >= b
            assert eligible[client] == (free and (k is None or len(past) < k))
        chosen = np.array([c for c in sorted(present) if eligible[c]], np.int64)
        table.record(table.cohort(round_number, table.names_of(chosen)))
        record[round_number] = chosen.tolist()
        for client in chosen:
            history[client].append(round_number)
    return table, record


traces = st.lists(st.sets(st.integers(0, 4)), min_size=1, max_size=20)


@hypothesis.settings(deadline=None, derandomize=True, max_examples=150)
@hypothesis.given(st.integers(1, 5), st.one_of(st.none(), st.integers(1, 4)), traces)
@pytest.mark.invariant(2)
def test_no_trace_of_availability_breaks_the_participation(b, k, rounds):
    table, record = table_trace(b, k, rounds)
    measured = measure_participation(record, len(rounds))
    assert table.measured(len(rounds)) == measured
    assert measured.min_separation is None or measured.min_separation >= b
    assert k is None or measured.max_participations <= k


def test_a_table_goes_on_with_other_names():
    before = ParticipationTable("abc", tf_bandmf.MinSep(3, 2))
    before.record(before.cohort(0, ("a", "b")))
    before.record(before.cohort(3, ("a",)))
    saved = json.loads(json.dumps(before.to_config()))
    after = ParticipationTable("xb", tf_bandmf.MinSep(3, 2))
    after.load_config(saved)
    assert after.eligible(4).tolist() == [True, True]
    assert after.measured(4) == before.measured(4)
    # "a" is away, and has taken part as often as it may: also when it is back.
    assert after.cohort(4, ("a", "b")).last_rounds == (3, 0)
    after.record(after.cohort(4, ("b",)))
    back = ParticipationTable("ab", tf_bandmf.MinSep(3, 2))
    back.load_config(after.copy().to_config())
    assert back.eligible(9).tolist() == [False, False]
    assert back.measured(5).num_participations == 4
