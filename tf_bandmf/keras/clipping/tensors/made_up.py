"""Examples that nobody contributed, for checks that may stop a run.

The result of a check on real examples would depend on them: refusing a run would reveal
something about a record.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

from tf_bandmf.keras.clipping.tensors import batches

_SEED = 20


def made_up(data: Any, num_examples: int) -> Any:
    """Makes up examples in a batch's shapes and dtypes, without reading its values.

    Floats are in (0.05, 0.95); integers and strings are 0 and 1, which nearly every
    vocabulary, number of classes and mask allows; images of bytes have values 0 to 255.
    Each example has the same number of ones, so a mask leaves equally many positions of
    each.

    Args:
      data: structure of arrays or tensors [B, ...]; None stays None.
      num_examples: the number of examples to make.
    """
    rng = np.random.default_rng(_SEED)

    def like(tensor: tf.Tensor) -> tf.Tensor:
        shape = (num_examples, *tensor.shape[1:])
        if tensor.dtype.is_floating or tensor.dtype.is_complex:
            return tf.cast(0.05 + 0.9 * rng.random(shape), tensor.dtype)
        if tensor.dtype == tf.uint8 and len(shape) > 2:
            return tf.constant(rng.integers(0, 256, shape), tf.uint8)
        size = math.prod(shape[1:])
        # A tensor of one number per example is 1 for half of the examples.
        bits = np.resize([1, 0], size if size > 1 else (num_examples, 1))
        bits = np.broadcast_to(bits, (num_examples, size))
        bits = rng.permuted(bits, axis=1 if size > 1 else 0).reshape(shape)
        if tensor.dtype == tf.string:
            return tf.strings.as_string(bits)
        return tf.cast(bits, tensor.dtype)

    return batches.map_tensors(like, batches.to_tensors(data))
