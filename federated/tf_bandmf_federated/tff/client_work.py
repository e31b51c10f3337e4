"""TFF client work that trains on tagged data and passes the tags to the aggregator."""

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
    """Wraps client work so that it accepts data sets tagged by `tag_dataset`.

    Args:
      inner: client work that trains on examples, with uniform weights. A weight is 1, or
        0 if the update was not finite, in which case TFF sends zeros.

    Returns:
      Client work that passes the `DEVICE_TAGS` in place of a weight. The tags named in
      `CARRIED` are read from the first element of a client's data, because all elements
      have the same tags. If a client has no data, each of these tags is `NEVER`.
    """
    state_type, weights_type, examples_type = inner.next.type_signature.parameter
    example_type = examples_type.member.element
    tags_type = tff.TensorType(np.int32, [len(CARRIED)])
    element = collections.OrderedDict(example=example_type, tags=tags_type)
    data_type = tff.SequenceType(tff.to_type(element))

    # Get the examples and the tags in one computation, because a second computation per
    # client would take as long as a training step of a small model. Avoid `reduce`,
    # whose function TensorFlow would prepare again for each client.
    @tff.tensorflow.computation(data_type)
    def examples_and_tags(dataset):
        absent = tf.nest.map_structure(_empty, dataset.element_spec)
        absent["tags"] = tf.fill([len(CARRIED)], NEVER)
        padded = dataset.concatenate(tf.data.Dataset.from_tensors(absent))
        tags = tf.unstack(padded.take(1).get_single_element()["tags"])
        examples = dataset.map(lambda element: element["example"])
        return examples, collections.OrderedDict(zip(CARRIED, tags))

    @tff.federated_computation(
        state_type, weights_type, tff.FederatedType(data_type, tff.CLIENTS)
    )
    def next_fn(state, weights, data):
        examples, tags = tff.federated_map(examples_and_tags, data)
        output = inner.next(state, weights, examples)
        told = collections.OrderedDict(
            {name: tags[name] for name in CARRIED},
            weight=output.result.update_weight,
        )
        result = tff.federated_zip(
            tff.learning.templates.ClientResult(
                update=output.result.update, update_weight=told
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


def _empty(spec: tf.TensorSpec) -> tf.Tensor:
    """Returns an empty tensor that fits a spec: unknown dimensions become 0."""
    return tf.zeros([size or 0 for size in spec.shape or ()], spec.dtype)
