"""Philox, the counter-based generator of random words, in integer arithmetic."""

from __future__ import annotations

import tensorflow as tf

# Multipliers and key increments of Philox4x32 ("Parallel random numbers: as easy as
# 1, 2, 3", Salmon et al., SC 2011, section 3.3).
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def philox(
    step_key: tf.Tensor, counter: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Four random words for each counter: Philox4x32 with 10 rounds.

    The words are those of `StatelessRandomUniformFullIntV2`, to the bit. TensorFlow
    computes them one counter after the other; XLA makes vector instructions of this.

    Args:
      step_key: uint64, shape [2]: key, and upper half of the counter.
      counter: uint64, lower half of the counter, any shape.

    Returns:
      Four uint32 tensors of the counter's shape.
    """
    keys = list(halves(step_key[0]))
    words = [
        *halves(counter),
        *(tf.broadcast_to(half, counter.shape) for half in halves(step_key[1])),
    ]
    for _ in range(_ROUNDS):
        low_0, high_0 = halves(_multiply(words[0], _MULTIPLIERS[0]))
        low_1, high_1 = halves(_multiply(words[2], _MULTIPLIERS[1]))
        words = [
            high_1 ^ words[1] ^ keys[0],
            low_1,
            high_0 ^ words[3] ^ keys[1],
            low_0,
        ]
        keys = [
            key + tf.constant(increment, tf.uint32)
            for key, increment in zip(keys, _KEY_INCREMENTS)
        ]
    return words[0], words[1], words[2], words[3]


def _multiply(word: tf.Tensor, factor: int) -> tf.Tensor:
    return tf.cast(word, tf.uint64) * tf.constant(factor, tf.uint64)


def halves(words: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Lower and upper 32 bits of uint64."""
    upper = tf.bitwise.right_shift(words, tf.constant(32, tf.uint64))
    return tf.cast(words, tf.uint32), tf.cast(upper, tf.uint32)
