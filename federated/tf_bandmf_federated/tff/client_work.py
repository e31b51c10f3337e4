"""Client work, which trains on the examples and passes tags to the aggregator."""

from __future__ import annotations

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tf_bandmf_federated.eligibility import NEVER
from tf_bandmf_federated.tff.tags import CARRIED


def tagged_client_work(
    inner: tff.learning.templates.ClientWorkProcess,
) -> tff.learning.templates.ClientWorkProcess:
    """Returns client work for tagged elements.

    Args:
      inner: client work that trains on examples, with uniform weights: the weight is 0 if
        the update was not finite (TFF then sends zeros) and 1 otherwise.

    Returns:
      A process whose update weights are the `DEVICE_TAGS`. The tags of `CARRIED` are in
      all elements of the data, and are read from the first one.
    """
    state_type, weights_type, examples_type = inner.next.type_signature.parameter
    example_type = examples_type.member.element
    tags_type = tff.TensorType(np.int32, [len(CARRIED)])
    element = collections.OrderedDict(example=example_type, tags=tags_type)
    data_type = tff.SequenceType(tff.to_type(element))

    # This is a single computation, because a second one for each client would cost as much
    # as a small model's step.
    @tff.tensorflow.computation(data_type)
    def examples_and_tags(dataset):
        absent = tf.fill([len(CARRIED)], NEVER), tf.constant(False)
        tags, present = dataset.take(1).reduce(
            absent, lambda _, element: (element["tags"], tf.constant(True))
        )
        carried = zip(CARRIED, tf.unstack(tags))
        examples = dataset.map(lambda element: element["example"])
        return examples, collections.OrderedDict(carried, present=present)

    @tff.federated_computation(
        state_type, weights_type, tff.FederatedType(data_type, tff.CLIENTS)
    )
    def next_fn(state, weights, data):
        examples, tags = tff.federated_map(examples_and_tags, data)
        output = inner.next(state, weights, examples)
        told = collections.OrderedDict(
            {name: tags[name] for name in (*CARRIED, "present")},
            weight=output.result.update_weight,
        )
        result = tff.federated_zip(
            tff.learning.templates.ClientResult(
                update=output.result.update,
                update_weight=told,
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
