"""Clients enforce b-min-separation before their updates enter the sum."""

import collections
import functools

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from hypothesis import strategies as st
from plans import min_sep_plan

from tf_bandmf_federated import tag_dataset
from tf_bandmf_federated.tff.aggregators import admitting_process

N, CLIENTS = 10, 5
B, K = 3, 2
VALUE_TYPE = tff.TensorType(np.float32, [CLIENTS])


@functools.cache
def devices():
    plan = min_sep_plan("lambda_cgd", N, B, K, noise_multiplier=0.01, test_seed=0)
    return admitting_process(plan, 1.0, VALUE_TYPE)


def one_hot(client):
    return np.eye(CLIENTS, dtype=np.float32)[client]


def device_tags(last_round=-1, participations=0, now=0):
    return collections.OrderedDict(
        last_round=np.int32(last_round),
        participations=np.int32(participations),
        round=np.int32(now),
        weight=np.float32(1.0),
    )


traces = st.lists(
    st.sets(st.integers(0, CLIENTS - 1), max_size=4), min_size=N, max_size=N
)


def check_run(next_round, attempts):
    """Runs a round per cohort; checks from the sum which clients contributed.

    Args:
      next_round: function that runs a round with a cohort.
      attempts: for each round, the clients that try to take part.
    """
    history = collections.defaultdict(list)
    for round_number, cohort in enumerate(attempts):
        cohort = sorted(cohort)
        result, counts = next_round(cohort, history)
        admitted = [c for c in cohort if result[c] > 0.5]
        np.testing.assert_allclose(result, sum(map(one_hot, admitted)), atol=0.2)
        for client in cohort:
            past = history[client]
            free = not past or round_number - past[-1] >= B
            assert (client in admitted) == (free and len(past) < K)
        for client in admitted:
            history[client].append(round_number)
        assert counts["contributing_clients"] == len(admitted)
        assert counts["early_clients"] == len(cohort) - len(admitted)


@hypothesis.settings(deadline=None, derandomize=True, max_examples=15)
@hypothesis.given(traces)
def test_admitted_participations_keep_the_separation_with_records_of_devices(attempts):
    state = devices().initialize()

    def next_round(cohort, history):
        nonlocal state
        tags = [
            device_tags(history[c][-1], len(history[c]), now=int(state["round"]))
            if history[c]
            else device_tags(now=int(state["round"]))
            for c in cohort
        ]
        output = devices().next(state, [one_hot(c) for c in cohort], tags)
        state = output.state
        return output.result, output.measurements

    check_run(next_round, attempts)


def test_an_early_contribution_has_no_influence_on_the_sum():
    state = devices().initialize()
    for _ in range(2):
        state = devices().next(state, [], []).state
    rng = np.random.default_rng(0)
    on_time = rng.normal(size=CLIENTS).astype(np.float32)
    alone = devices().next(state, [on_time], [device_tags(now=2)])
    for early in (
        rng.normal(size=CLIENTS),
        np.full(CLIENTS, 1e30),
        np.full(CLIENTS, np.nan),
    ):
        early = early.astype(np.float32)
        records = ((0, 1), (1, 1), (5, 1), (-5, 0), (-1, 1), (-1, -7), (0, 0))
        # None stands for a client without data.
        for record in (*records, None):
            tags = device_tags(*record, now=2) if record else device_tags(now=-1)
            both = devices().next(state, [early, on_time], [tags, device_tags(now=2)])
            np.testing.assert_array_equal(both.result, alone.result)
            assert both.measurements["early_clients"] == (record is not None)


def test_tagged_data_sets():
    dataset = tf.data.Dataset.from_tensor_slices((np.arange(4), np.ones(4))).batch(2)
    tagged = tag_dataset(dataset, 7, 2, np.int64(9))
    element = next(iter(tagged))
    assert element["tags"].numpy().tolist() == [7, 2, 9]
    np.testing.assert_array_equal(element["example"][0], [0, 1])
    for wrong in ((-1, 1, 9), (3, 0, 9), (1.7, 1, 9), (-2, 0, 9), (-1, 0, -1)):
        with pytest.raises(ValueError, match="must be"):
            tag_dataset(dataset, *wrong)
