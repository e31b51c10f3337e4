"""Tags: what a device knows about its own past, inside the elements of its data.

TFF gives `next` exactly one argument per client, a sequence. So each element is a
dictionary of the model's `example` (a batch) and of tags, the same in all elements.

| tag | who knows it | for |
|---|---|---|
| `last_round`, `participations` | the device | production: the server keeps no record |
| `round` | who tagged the data | refusing data that were tagged for another round |
"""

from __future__ import annotations

import collections
import operator

import numpy as np
import tensorflow as tf

from tf_bandmf_federated.eligibility import contradicts_itself

# What a client hands to the aggregator with its update. `present`: it has data at all;
# `finite`: its update was finite.
DEVICE_TAGS = collections.OrderedDict(
    last_round=np.int32,
    participations=np.int32,
    round=np.int32,
    present=np.bool_,
    finite=np.bool_,
)


def tag_dataset(
    dataset: tf.data.Dataset, last_round: int, participations: int, round_number: int
) -> tf.data.Dataset:
    """A client's data with the device's own record.

    Args:
      dataset: batches as the model's `input_spec` says.
      last_round: round (from 0) of the device's last participation, or -1. The device
        records it durably before its contribution leaves the device.
      participations: how often it took part before.
      round_number: the round that the data are for, from `process.round_number(state)`.
        In another round they are an error: make new tags for every round, from a record
        that the last participation updated.

    Raises:
      TypeError: if one is not an integer.
      ValueError: if one is out of range or they contradict each other.
    """
    last = _whole("last_round", last_round)
    count = _whole("participations", participations)
    now = _whole("round_number", round_number)
    if contradicts_itself(last, count):
        raise ValueError(
            f"last_round must be -1 and participations 0, or last_round >= 0 and "
            f"participations >= 1; found {last_round} and {participations}."
        )
    if now < 0:
        raise ValueError(f"round_number must be >= 0, found {round_number}.")
    # Not a map: tracing a function for each client takes ten times as long.
    tags = {
        name: tf.data.Dataset.from_tensors(tf.constant(value, tf.int32)).repeat()
        for name, value in zip(DEVICE_TAGS, (last, count, now))
    }
    return tf.data.Dataset.zip(collections.OrderedDict(example=dataset, **tags))


def _whole(name: str, value: int) -> int:
    """The value, which is not rounded silently."""
    if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be a whole number, found {value!r}.")
    return operator.index(value)
