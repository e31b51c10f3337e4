"""Client work: local training on the examples, tags handed on to the aggregator."""

from __future__ import annotations

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tf_bandmf_federated.eligibility import NEVER
from tf_bandmf_federated.tff.tags import DEVICE_TAGS


def tagged_client_work(
    inner: tff.learning.templates.ClientWorkProcess,
) -> tff.learning.templates.ClientWorkProcess:
    """Client work on tagged elements.

    Args:
      inner: trains on examples, with uniform weights: its weight is 0 if the update was
        not finite (TFF then sends zeros) and 1 otherwise.

    Returns:
      A process whose update weight are the `DEVICE_TAGS`. Those besides "present" and
      "finite" are in the elements, and read from the first one.
    """
    state_type, weights_type, examples_type = inner.next.type_signature.parameter
    example_type = examples_type.member.element
    carried = [name for name in DEVICE_TAGS if name not in ("present", "finite")]
    types = {name: DEVICE_TAGS[name] for name in carried}
    data_type = tff.SequenceType(
        tff.to_type(collections.OrderedDict(example=example_type, **types))
    )

    @tff.tensorflow.computation(data_type)
    def examples_of(dataset):
        return dataset.map(lambda element: element["example"])

    # One computation for each client: a further one costs as much as a small model's step.
    @tff.tensorflow.computation(data_type, np.float32)
    def tags_of(dataset, weight):
        absent = tuple(tf.constant(NEVER, tf.int32) for _ in carried)

        def read(_, element):
            return tuple(element[name] for name in carried), tf.constant(True)

        first = dataset.take(1)
        tags, present = first.reduce((absent, tf.constant(False)), read)
        return collections.OrderedDict(
            zip(carried, tags), present=present, finite=weight > 0.0
        )

    @tff.federated_computation(
        state_type, weights_type, tff.FederatedType(data_type, tff.CLIENTS)
    )
    def next_fn(state, weights, data):
        output = inner.next(state, weights, tff.federated_map(examples_of, data))
        result = tff.federated_zip(
            tff.learning.templates.ClientResult(
                update=output.result.update,
                update_weight=tff.federated_map(
                    tags_of, (data, output.result.update_weight)
                ),
            )
        )
        return tff.templates.MeasuredProcessOutput(
            output.state, result, output.measurements
        )

    return tff.learning.templates.ClientWorkProcess(
        inner.initialize,
        next_fn,
        get_hparams_fn=inner.get_hparams,
        set_hparams_fn=inner.set_hparams,
    )
