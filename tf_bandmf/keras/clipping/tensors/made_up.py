"""Examples that nobody contributed, for checks that may stop a run.

What a check says of real examples would depend on them: that a run was refused, or that
it was not, would tell about a record.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tf_bandmf.keras.clipping.tensors import batches

_SEED = 20


def made_up(data: Any, num_examples: int) -> Any:
    """Examples of the shapes and dtypes of a batch; its values are not looked at.

    Floats are in (0.05, 0.95); integers and strings are 0 and 1, which nearly every
    vocabulary, number of classes and mask knows; images of bytes have all 256 values.

    Args:
      data: structure of arrays or tensors [B, ...]; None stays None.
      num_examples: of the result.
    """
    rng = np.random.default_rng(_SEED)

    def like(tensor: tf.Tensor) -> tf.Tensor:
        shape = (num_examples, *tensor.shape[1:])
        if tensor.dtype.is_floating or tensor.dtype.is_complex:
            return tf.cast(0.05 + 0.9 * rng.random(shape), tensor.dtype)
        bits = rng.integers(0, 2, shape)
        if tensor.dtype == tf.string:
            return tf.strings.as_string(bits)
        if tensor.dtype == tf.uint8 and len(shape) > 2:
            return tf.constant(rng.integers(0, 256, shape), tf.uint8)
        if len(shape) > 1:
            bits[:, 0] = 1  # No sequence is all padding.
        return tf.cast(bits, tensor.dtype)

    return batches.map_tensors(like, batches.to_tensors(data))
