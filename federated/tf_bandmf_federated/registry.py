"""A registry of clients on the server, for simulation.

It knows the last round and the number of participations of every client, and sees what a
record that a device carries cannot show: the same client twice in one round.
"""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tf_bandmf_federated.tags import NEVER


class Aggregation(NamedTuple):
    """The arguments of `tff.federated_aggregate`, and the type of its result."""

    zero: Any
    accumulate: tff.Computation
    merge: tff.Computation
    report: tff.Computation
    type: tff.Type


class Registry:
    """Tables `last_round` and `participations`, int32, shape [num_clients].

    Args:
      num_clients: N; clients are numbered from 0.
    """

    def __init__(self, num_clients: int) -> None:
        self.num_clients = num_clients
        column = tff.TensorType(np.int32, [num_clients])
        self.table_type = collections.OrderedDict(
            last_round=column, participations=column
        )

    def initial_table(self) -> collections.OrderedDict:
        """Nobody took part yet."""
        shape = [self.num_clients]
        return collections.OrderedDict(
            last_round=tf.fill(shape, NEVER), participations=tf.zeros(shape, tf.int32)
        )

    def look_up(self, table: Any, tags: Any) -> collections.OrderedDict:
        """The record of one client.

        Raises:
          InvalidArgumentError: at run time, for a number outside of the table.
        """
        client = tags["client"]
        message = (
            f"client must be in [0, {self.num_clients}): so large is the registry."
        )
        # A client without data does not say who it is, and is not asked.
        known = ~tags["present"] | ((client >= 0) & (client < self.num_clients))
        with tf.control_dependencies([tf.debugging.Assert(known, [message, client])]):
            row = tf.maximum(client, 0)
        return collections.OrderedDict(
            (name, tf.gather(column, row)) for name, column in table.items()
        )

    def visit(self, tags: Any, early: tf.Tensor) -> collections.OrderedDict:
        """What the server learns from one client: who, and whether it is admitted."""
        present = tags["present"]
        return collections.OrderedDict(
            client=tf.maximum(tags["client"], 0),
            visits=tf.cast(present, tf.int32),
            admissions=tf.cast(present & ~early, tf.int32),
        )

    def aggregation(self) -> Aggregation:
        """Counts visits and admissions per client: int32, shape [2, num_clients]."""
        total_type = tff.TensorType(np.int32, [2, self.num_clients])
        visit_type = tff.to_type(
            collections.OrderedDict(
                client=np.int32, visits=np.int32, admissions=np.int32
            )
        )

        @tff.tensorflow.computation(total_type, visit_type)
        def accumulate(total, visit):
            client = visit["client"]
            indices = [[0, client], [1, client]]
            amounts = [visit["visits"], visit["admissions"]]
            return tf.tensor_scatter_nd_add(total, indices, amounts)

        @tff.tensorflow.computation(total_type, total_type)
        def merge(left, right):
            return left + right

        @tff.tensorflow.computation(total_type)
        def report(total):
            return total

        zero = np.zeros([2, self.num_clients], np.int32)
        return Aggregation(zero, accumulate, merge, report, total_type)

    def updated(
        self, table: Any, totals: tf.Tensor, round_number: tf.Tensor
    ) -> collections.OrderedDict:
        """The table after a round.

        Raises:
          InvalidArgumentError: at run time, if a client came twice: its contribution to
            the sum would be twice what the plan accounts for.
        """
        visits, admissions = tf.unstack(totals)
        twice = tf.where(visits > 1)[:, 0]
        check = tf.debugging.Assert(
            tf.equal(tf.size(twice), 0),
            ["The same client twice in one round; clients:", twice],
        )
        with tf.control_dependencies([check]):
            admitted = tf.identity(admissions) > 0
        now = tf.cast(round_number, tf.int32)
        return collections.OrderedDict(
            last_round=tf.where(admitted, now, table["last_round"]),
            participations=table["participations"] + tf.cast(admitted, tf.int32),
        )
