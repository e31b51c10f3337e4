"""Tags: a device's participation record, added to all elements of its data set.

In TFF, a client can pass only a sequence of elements to `next`. Therefore each element
is a dictionary with two entries: `example`, a batch for the model; and `tags`, the
int32 values named in `CARRIED`, in that order. All elements have the same tags.

| tag | known to | purpose |
|---|---|---|
| `last_round`, `participations` | the device | enforcement of the plan's limits |
| `round` | whoever tagged the data | rejection of data that were tagged for another round |
"""

from __future__ import annotations

import collections

import numpy as np
import tensorflow as tf

from tf_bandmf.accounting.checks import whole_number
from tf_bandmf_federated.eligibility import NEVER, contradicts_itself

CARRIED = ("last_round", "participations", "round")
# The types of the values that a client passes to the aggregator with its update.
# `round` is `NEVER` if the client has no data. `weight` is 1 if the client's update was
# finite. If it was not, TFF sends zeros instead of the update, and `weight` is 0.
DEVICE_TAGS = collections.OrderedDict(
    **dict.fromkeys(CARRIED, np.int32),
    weight=np.float32,
)


def tag_dataset(
    dataset: tf.data.Dataset, last_round: int, participations: int, round_number: int
) -> tf.data.Dataset:
    """Returns a client's data, tagged with the device's participation record.

    Args:
      dataset: data set of batches that match the model's `input_spec`.
      last_round: round (from 0) of the device's last participation; -1 if there is
        none. The device must write a participation to disk before its contribution
        leaves the device.
      participations: number of the device's earlier participations.
      round_number: the round for which the data are tagged, from
        `process.round_number(state)`. In any other round, `next` raises an error for
        these tags. Therefore tag the data again for every round, with a record that
        includes the last participation.

    Raises:
      ValueError: if a number is not an integer or is out of range, or if `last_round`
        and `participations` contradict each other.
    """
    last = whole_number("last_round", last_round, least=NEVER)
    count = whole_number("participations", participations, least=0)
    now = whole_number("round_number", round_number, least=0)
    if contradicts_itself(last, count):
        raise ValueError(
            f"last_round must be -1 if participations is 0, and >= 0 otherwise, but "
            f"found last_round = {last_round} and participations = {participations}."
        )
    # Zip the data with constant tags. `Dataset.map` would trace a function for each
    # client, and take ten times as long.
    tags = tf.data.Dataset.from_tensors(tf.constant([last, count, now], tf.int32))
    return tf.data.Dataset.zip(
        collections.OrderedDict(example=dataset, tags=tags.repeat())
    )
