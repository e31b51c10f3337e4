"""Examples that nobody contributed, for checks that may stop a run.

The result of a check on real examples would depend on them: whether a run is refused
would reveal something about a record.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tf_bandmf.keras.clipping.tensors import batches

_SEED = 20


def made_up(data: Any, num_examples: int) -> Any:
    """Makes up examples in a batch's shapes and dtypes, without a look at its values.

    Floats are in (0.05, 0.95); integers and strings are 0 and 1, which nearly every
    vocabulary, number of classes and mask allows; images of bytes have values 0 to 255.

    Args:
      data: structure of arrays or tensors [B, ...]; None stays None.
      num_examples: the number of examples to make.
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
