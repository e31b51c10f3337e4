"""Detects changes to the weights by anything other than a private step.

A plain model that shares layers with a private one can train them without noise, and an
assignment can change weights, too. When `fit`, `train_on_batch` or a private evaluation
begins, the model's weights must be those that the run's last step left. Within
`fit`, callbacks may change the weights: they see only noisy weights, so that their
changes are post-processing.

The digest covers every bit. For weights on the host, it is FarmHash64 (9 GB/s on one
core). On an accelerator, it is a sum modulo 2^64 of the words of the weights, each
multiplied by a number that depends on the word's position. XLA computes the sum in one
pass, and no weight is copied to the host. The digest guards against mistakes, not
against an attacker who searches for weights with the same digest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_bandmf.noise.devices import device_kind
from tf_bandmf.noise.shared import shared_function

CHANGED = (
    "The weights, or the state of the inner optimizer (moments, averages), are not those "
    "that the last private step of this run left: something else changed them (a plain "
    "model that shares them was trained; they were loaded, assigned or reset; a callback "
    "wrote them, as EarlyStopping(restore_best_weights=True) does). If the change used "
    "private data, the guarantee is gone: go back to weights of the run. If not, say so: "
    "model.optimizer.vouch_for_weights('what changed them, and from which data')."
)
_INTEGERS = {1: tf.uint8, 2: tf.uint16, 4: tf.int32, 8: tf.int64}


def digest_of(variables: Sequence[Any]) -> int:
    """Returns a digest of all bits of Keras variables; 0 if there are no variables."""
    if not variables:
        return 0
    if device_kind() == "CPU":
        return host_digest(variables)
    values = [tf.convert_to_tensor(variable.value) for variable in variables]
    return int(_device_digest(values))


def host_digest(variables: Sequence[Any]) -> int:
    """Returns a digest of Keras variables' bits that is the same on all devices."""
    with tf.device("/CPU:0"):
        # If these constants were created inside `digest`, they would cost two more
        # operations for each variable.
        row, method = tf.constant([1, -1]), tf.constant("farmhash64")

        def digest(value: Any) -> tf.Tensor:
            """Returns a digest of one value: eight bytes, uint8, shape [1, 8]."""
            flat = tf.raw_ops.Reshape(tensor=value, shape=row)
            return tf.raw_ops.Fingerprint(data=flat, method=method)

        each = [digest(tf.convert_to_tensor(one.value)) for one in variables]
        together = digest(tf.concat(each, axis=0))
    return int.from_bytes(together.numpy().tobytes(), "little", signed=True)


@shared_function(jit_compile=True, reduce_retracing=False)
def _device_digest(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns one digest of all values, int64 scalar: a digest of their digests."""
    digests = tf.stack([_sum_of_products(value) for value in values])
    return _sum_of_products(digests)


def _sum_of_products(value: tf.Tensor) -> tf.Tensor:
    """Returns the sum of the words of `value`, each times an odd number.

    The odd number depends only on the position of the word.
    """
    flat = tf.reshape(value, [-1])
    if flat.dtype == tf.bool:
        flat = tf.cast(flat, tf.int32)
    words = tf.cast(tf.bitcast(flat, _INTEGERS[flat.dtype.size]), tf.int64)
    places = tf.shape(words)
    drawn = tf.random.stateless_uniform(places, (0, 0), None, None, tf.int64)
    odd = tf.bitwise.bitwise_or(drawn, tf.constant(1, tf.int64))
    return tf.reduce_sum(words * odd)
