"""Tests of `SimulatedClients`: availability, selection and tags."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from ledgers import begin_round
from plans import min_sep_plan

from tf_bandmf_federated import (
    SimulatedClients,
)

N, B, K = 10, 3, 2
NUM_CLIENTS = 12


def examples(value):
    x = np.full([4, 3], value, np.float32)
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(2)


def make_clients(count=NUM_CLIENTS):
    return {f"c{i:03d}": (lambda i=i: examples(i)) for i in range(count)}


PLAN = min_sep_plan("lambda_cgd", N, B, K)
CLIENTS = make_clients()


def source_of(plan=PLAN, clients=None, **options):
    options.setdefault("seed", 0)
    return SimulatedClients(CLIENTS if clients is None else clients, plan, **options)


def select(source, ledger, size):
    """Selects clients and begins a round; returns the round and the selection."""
    number = len(ledger.rounds)
    selected = source.cohorts(ledger, size, 1).select(number, size)
    begin_round(ledger, number, selected.names)
    return number, selected


def tags(dataset):
    """Returns the tags and the value that all elements of a client's data share."""
    rows = {
        (*e["tags"].numpy().tolist(), float(e["example"][0][0, 0])) for e in dataset
    }
    (row,) = rows
    return row


# The next tests check the selected clients and their data.


def test_delivers_what_each_device_knows_of_its_past(ledger):
    source, history = source_of(), collections.defaultdict(list)
    for _ in range(6):
        number, selected = select(source, ledger, 4)
        datasets = source.tagged(selected, number)
        assert len(datasets) == len(set(selected.names)) == 4
        for name, dataset in zip(selected.names, datasets):
            past = history[name]
            last = past[-1] if past else -1
            assert tags(dataset) == (last, len(past), number, float(name[1:]))
            past.append(number)
    assert max(map(len, history.values())) == 2
    gone = source_of(clients=make_clients(3))
    assert len(gone.tagged(selected, number)) == len({*selected.names} & {*gone.names})


def test_takes_client_data_of_tff_and_preprocesses_it(ledger):
    data = {
        name: {"x": np.full([5, 2], i, np.float32)}
        for i, name in enumerate(["b", "a", "c"])
    }
    source = source_of(
        clients=tff.simulation.datasets.TestClientData(data),
        preprocess=lambda dataset: dataset.batch(2),
    )
    assert source.names == ("a", "b", "c")
    number, selected = select(source, ledger, 3)
    for name, dataset in zip(selected.names, source.tagged(selected, number)):
        batches = [e["example"]["x"].numpy() for e in dataset]
        assert [len(batch) for batch in batches] == [2, 2, 1]
        assert batches[0][0, 0] == data[name]["x"][0, 0]


# In the remaining tests, there are too few clients.


def test_too_few_clients_are_an_error_that_begins_nothing(ledger):
    options = dict(clients=make_clients(8), availability=lambda t, name: name != "c000")
    source = source_of(**options)
    for _ in range(2):
        select(source, ledger, 3)
    message = r"Round 2 needs 3 eligible clients, but found 1 \(7 of 8 clients are ava"
    with pytest.raises(ValueError, match=message):
        select(source, ledger, 3)
    assert len(ledger.rounds) == 2
    fewer = source_of(on_shortage="fewer", **options)
    assert len(select(fewer, ledger, 3)[1].names) == 1


@pytest.mark.parametrize(("size", "rounds", "needed"), [(4, N, 20), (5, 3, 15)])
def test_says_beforehand_that_there_are_too_few_clients(ledger, size, rounds, needed):
    # With b = 3, no client takes part twice in three consecutive rounds. With k = 2,
    # all rounds together need at least half as many clients as participations.
    for count in (needed, needed - 1):
        poor = source_of(clients=make_clients(count))
        if count == needed:
            poor.cohorts(ledger, size, rounds)
            continue
        with pytest.raises(ValueError, match=f"need at least {needed} clients"):
            poor.cohorts(ledger, size, rounds)
        fewer = source_of(clients=make_clients(count), on_shortage="fewer")
        fewer.cohorts(ledger, size, rounds)
