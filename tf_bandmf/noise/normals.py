"""Independent standard normals from a counter-based generator."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

# Normals are made in blocks of this many, so that any block can be made by itself.
BLOCK = 4096
_COUNTERS_PER_BLOCK = BLOCK // 4  # one Philox counter gives four 32-bit words
_PHILOX = 1  # tf.random.Algorithm.PHILOX, never "auto_select"


def standard_normals(
    step_key: tf.Tensor, num_normals: int, first_block: tf.Tensor | int = 0
) -> tf.Tensor:
    """Independent standard normals, float32, shape [num_normals].

    Box-Muller on the bits of Philox: the bits are the same with and without XLA and on
    every device, and the normals agree to float precision. (The generator
    `tf.random.stateless_normal` gives other numbers under XLA.) The largest magnitude
    is 6.7.

    Args:
      step_key: uint64, shape [2]: Philox key, and upper half of its counter.
      num_normals: static.
      first_block: where to begin, in blocks of 4096 normals: a shard generates its
        part alone.
    """
    first_counter = tf.cast(first_block, tf.uint64) * _COUNTERS_PER_BLOCK
    num_blocks = -(-num_normals // BLOCK)
    bits = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[num_blocks, 2, BLOCK // 2],
        key=step_key[:1],
        counter=tf.stack([first_counter, step_key[1]]),
        alg=_PHILOX,
        dtype=tf.uint32,
    )
    signed = tf.bitcast(bits, tf.int32)
    # In (0, 1], with full relative precision near 0, where the tails come from.
    low = tf.cast(tf.bitwise.bitwise_and(signed[:, 0], 0x7FFFFFFF), tf.float32)
    uniform = (low + 0.5) * 2.0**-31
    radius = tf.sqrt(-2.0 * tf.math.log(uniform))
    angle = tf.cast(signed[:, 1], tf.float32) * np.float32(np.pi * 2.0**-31)
    pairs = tf.stack([radius * tf.cos(angle), radius * tf.sin(angle)], axis=1)
    return tf.reshape(pairs, [-1])[:num_normals]
