"""Batches of one constant size: padded with examples of weight 0."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_bandmf.sampling.sources import INPUTS, ROWS, SAMPLE_WEIGHT


def pad(content: dict[str, Any], size: int) -> dict[str, Any]:
    """Adds examples of zeros with sample weight 0 up to a constant size.

    Args:
      content: structures of tensors whose first dimension N is the example.
      size: of the result.

    Returns:
      The same with first dimension `size`, and a `sample_weight` unless `rows` says which
      rows of a unit are there.

    Raises:
      InvalidArgumentError: in a graph, if N exceeds the size: nothing is cut off, for
        that would be another sampler.
    """
    count = tf.shape(tf.nest.flatten(content[INPUTS])[0])[0]
    # A unit of which no row is there contributes nothing.
    if SAMPLE_WEIGHT not in content and ROWS not in content:
        content = {**content, SAMPLE_WEIGHT: tf.ones([count])}
    message = (
        "A batch has more examples than its padded size: it is not cut off, for that "
        "would be another sampler than the accountant's. Give a larger padded size."
    )
    with tf.control_dependencies([tf.debugging.Assert(count <= size, [message])]):
        missing = size - count

    def padded(tensor: tf.Tensor) -> tf.Tensor:
        shape = tensor.shape[1:].as_list()
        zeros = tf.zeros([missing, *shape], tensor.dtype)
        return tf.ensure_shape(tf.concat([tensor, zeros], axis=0), [size, *shape])

    return tf.nest.map_structure(padded, content)
