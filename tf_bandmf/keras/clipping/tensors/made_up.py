"""Made-up examples, for checks that may refuse a run.

With real examples, the result of such a check would depend on private data, so a
refusal could reveal something about a record.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

from tf_bandmf.keras.clipping.tensors import batches

_SEED = 20


def made_up(data: Any, num_examples: int) -> Any:
    """Makes up examples from the shapes and dtypes of a batch, not from its values.

    Floats are in (0.05, 0.95), and images of uint8 have values from 0 to 255. All other
    tensors contain 0 and 1, which nearly all vocabularies, class counts and masks
    allow. Unless an example is a single number, all examples have the same number of
    ones, so a mask has the same number of unmasked positions in each example.

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
        # If each example has only one number, it is 1 in half of the examples.
        bits = np.resize([1, 0], size if size > 1 else (num_examples, 1))
        bits = np.broadcast_to(bits, (num_examples, size))
        bits = rng.permuted(bits, axis=1 if size > 1 else 0).reshape(shape)
        if tensor.dtype == tf.string:
            return tf.strings.as_string(bits)
        return tf.cast(bits, tensor.dtype)

    return batches.map_tensors(like, batches.to_tensors(data))
