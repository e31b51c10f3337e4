"""Philox, a counter-based generator of random words, in TensorFlow's integer arithmetic."""

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
    """Returns four random words for each counter: Philox4x32 with 10 rounds.

    The words are bit-identical to the output of TensorFlow's
    `StatelessRandomUniformFullIntV2`, whose kernel processes one counter after the
    other; XLA compiles this function to vector instructions.

    Args:
      step_key: uint64, shape [2]: the key, and the upper half of the counter.
      counter: the lower halves of the counters, uint64, any shape.

    Returns:
      Four uint32 tensors with the shape of `counter`.
    """
    half = tf.constant(32, tf.uint64)
    words = [
        *halves(counter, half),
        *(tf.broadcast_to(word, counter.shape) for word in halves(step_key[1], half)),
        *halves(step_key[0], half),
    ]

    # This is a `tf.function`, so that all rounds share one trace. XLA inlines it.
    @tf.function(autograph=False)
    def one_round(*words: tf.Tensor) -> list[tf.Tensor]:
        low_0, high_0, low_1, high_1 = (
            part
            for word, factor in zip(words[:4:2], _MULTIPLIERS)
            for part in halves(tf.cast(word, tf.uint64) * factor)
        )
        keys = [key + increment for key, increment in zip(words[4:], _KEY_INCREMENTS)]
        return [
            high_1 ^ words[1] ^ words[4],
            low_1,
            high_0 ^ words[3] ^ words[5],
            low_0,
            *keys,
        ]

    traced = one_round.get_concrete_function(*words)
    for _ in range(_ROUNDS):
        words = traced(*words)
    return words[0], words[1], words[2], words[3]


def halves(
    words: tf.Tensor, half: tf.Tensor | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the lower and the upper 32 bits of uint64 words.

    Args:
      words: uint64, any shape.
      half: the constant 32 as a uint64 tensor, so several calls can reuse one op. By
        default, the function creates it.
    """
    half = tf.constant(32, tf.uint64) if half is None else half
    upper = tf.bitwise.right_shift(words, half)
    return tf.cast(words, tf.uint32), tf.cast(upper, tf.uint32)


def philox_in_a_row(
    step_key: tf.Tensor, counter: tf.Tensor, num_counters: int
) -> tf.Tensor:
    """Computes the words of `philox` for consecutive counters with TensorFlow's kernel.

    Args:
      step_key: uint64, shape [2]: the key, and the upper half of the counter.
      counter: the lower half of the first counter, uint64 scalar.
      num_counters: number of counters.

    Returns:
      int32, shape [num_counters, 4].
    """
    return tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[num_counters, 4],
        key=step_key[:1],
        counter=tf.stack([counter, step_key[1]]),
        # The number 1 means `tf.random.Algorithm.PHILOX` on every device.
        alg=1,
        dtype=tf.int32,
    )
