"""Tags: what a device knows about its own past, inside the elements of its data.

TFF gives `next` exactly one argument per client, a sequence. So each element is a
dictionary of the model's `example` (a batch) and of `tags`, the same in all elements:
int32, the numbers of `CARRIED` in their order.

| tag | who knows it | for |
|---|---|---|
| `last_round`, `participations` | the device | production: the server keeps no record |
| `round` | who tagged the data | refusing data that were tagged for another round |
"""

from __future__ import annotations

import collections

import numpy as np
import tensorflow as tf

from tf_bandmf.accounting.checks import whole_number
from tf_bandmf_federated.eligibility import NEVER, contradicts_itself

CARRIED = ("last_round", "participations", "round")
# What a client hands to the aggregator with its update. `present`: it has data at all;
# `weight`: 0 if its update was not finite (TFF then sends zeros), 1 otherwise.
DEVICE_TAGS = collections.OrderedDict(
    **dict.fromkeys(CARRIED, np.int32),
    present=np.bool_,
    weight=np.float32,
)


def tag_dataset(
    dataset: tf.data.Dataset, last_round: int, participations: int, round_number: int
) -> tf.data.Dataset:
    """A client's data, tagged with the device's own record.

    Args:
      dataset: batches as the model's `input_spec` says.
      last_round: round (from 0) of the device's last participation, or -1. The device
        records it durably before its contribution leaves the device.
      participations: how often it took part before.
      round_number: the round that the data are for, from `process.round_number(state)`.
        In another round, these tags are an error: make new tags for every round, from a
        record that includes the last participation.

    Raises:
      ValueError: if a number is not whole or out of range, or they contradict each other.
    """
    last = whole_number("last_round", last_round, least=NEVER)
    count = whole_number("participations", participations, least=0)
    now = whole_number("round_number", round_number, least=0)
    if contradicts_itself(last, count):
        raise ValueError(
            f"last_round must be -1 and participations 0, or last_round >= 0 and "
            f"participations >= 1; found {last_round} and {participations}."
        )
    # Not a map: tracing a function for each client takes ten times as long.
    tags = tf.data.Dataset.from_tensors(tf.constant([last, count, now], tf.int32))
    return tf.data.Dataset.zip(
        collections.OrderedDict(example=dataset, tags=tags.repeat())
    )
