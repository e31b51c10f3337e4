"""Normals for GPUs, of several terms or inside of a larger XLA program: one kernel.

Where XLA cuts an expression with so many shared parts into kernels, these exchange words
through memory. So every number computes its own pair here, and keeps the cosine or the
sine: more arithmetic, and no memory. Terms are a dimension, over which XLA sums within the
kernel: the expression is that of one term, however many there are.

The numbers are those of `normals`: the same words, and the same operations on them.
"""

from __future__ import annotations

import tensorflow as tf

from tf_bandmf.noise.box_muller import one_of_pair
from tf_bandmf.noise.devices import barrier
from tf_bandmf.noise.radius import shared_part
from tf_bandmf.noise.word_sources import source_of

# Numbers of a tile, and of tiles of a block of `normals`; its pairs have these counters,
# and what they share those from SHARED on.
_TILE, _TILES = 1024, 4
_PAIRS, _SHARED = 2 * _TILE, 1 << 63


def lane_normals(
    step_keys: tf.Tensor,
    weights: tf.Tensor,
    first_block: tf.Tensor,
    num_normals: int,
) -> tf.Tensor:
    """`sum_j weights[j] z_j`, float32, shape [num_normals]; to be compiled by XLA.

    Args:
      step_keys: uint64, shape [terms, key_words].
      weights: float32, shape [terms].
      first_block: uint64 scalar.
      num_normals: static.
    """
    first_block = barrier(first_block)  # not a constant
    terms, tiles = int(step_keys.shape[0]), -(-num_normals // _TILE)
    blocks = tf.cast(tf.range(-(-tiles // _TILES)), tf.uint64)
    of_blocks = blocks + (first_block + tf.constant(_SHARED, tf.uint64))
    first, second, *_ = _words(step_keys, of_blocks[None])
    shared = shared_part(first, second)
    # (A tile and a place in it, for XLA would keep all counters as a constant.)
    begin = first_block * _PAIRS + tf.cast(tf.range(tiles), tf.uint64) * (_TILE // 2)
    counter = begin[:, None] + tf.cast(tf.range(_TILE) // 2, tf.uint64)
    # Each term has counters of its own, for XLA would keep common ones in memory.
    zeros = barrier(tf.zeros([terms, 1], tf.uint64))
    # What is left over is cut from the counters, not from the sum.
    counter = (tf.reshape(counter, [1, -1]) + zeros)[:, :num_normals]
    block = tf.bitwise.right_shift(counter, tf.constant(11, tf.uint64)) - first_block
    of_number = tf.gather(shared, tf.cast(block, tf.int32), axis=1, batch_dims=1)
    place = tf.bitwise.bitwise_and(tf.range(_TILE), 1) + tf.zeros([tiles, 1], tf.int32)
    place = tf.reshape(place, [-1])[:num_normals]
    numbers = one_of_pair(_words(step_keys, counter), of_number, place)
    return tf.reduce_sum(weights[:, None] * numbers, axis=0)


def _words(step_keys: tf.Tensor, counter: tf.Tensor) -> list[tf.Tensor]:
    """Four int32 words of each term and counter; `counter` has shape [terms or 1, n]."""
    terms = int(step_keys.shape[0])
    keys = tf.reshape(tf.transpose(step_keys), [-1, terms, 1])
    counter = tf.broadcast_to(counter, [terms, counter.shape[1]])
    words = source_of(step_keys).four(keys, counter)
    return [tf.bitcast(word, tf.int32) for word in words]
