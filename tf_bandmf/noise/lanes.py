"""Normals for TPUs, and for GPUs inside of a larger XLA program: one number a lane.

A TPU pads the last dimension of an array to 128 lanes: pairs in that dimension take 64
times their size. And where XLA cuts an expression with so many shared parts into kernels,
these exchange words through memory. So every number computes its own pair here, and keeps
the cosine or the sine: more arithmetic, and no memory. Terms are a dimension, over which
XLA sums within the kernel: the expression is that of one term, however many there are.
On a GPU it is one kernel. On a TPU it is a loop, see `passes`.

The numbers are those of `normals`: the same words, and the same operations on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from tf_bandmf.noise.box_muller import one_of_pair
from tf_bandmf.noise.devices import barrier
from tf_bandmf.noise.passes import (
    LANES,
    ROWS,
    TILE,
    NormalsOfTiles,
    in_passes,
    tiles_of_pass,
)
from tf_bandmf.noise.radius import shared_part
from tf_bandmf.noise.word_sources import source_of

# So many tiles make a block of `normals`; its pairs have these counters, and what they
# share those from SHARED on.
_TILES, _PAIRS, _SHARED = 4, 2 * TILE, 1 << 63


def lane_normals(
    step_keys: tf.Tensor,
    weights: tf.Tensor,
    first_block: tf.Tensor,
    num_normals: int,
    kind: str,
) -> tf.Tensor:
    """`sum_j weights[j] z_j`, float32, shape [num_normals]; to be compiled by XLA.

    Args:
      step_keys: uint64, shape [terms, key_words].
      weights: float32, shape [terms].
      first_block: uint64 scalar.
      num_normals: static.
      kind: of the device, "TPU" or "GPU".
    """
    first_block = barrier(first_block)  # not a constant
    tiles = -(-num_normals // TILE)
    if kind == "GPU":
        shared = _shared(step_keys, first_block, tf.range(tiles))
        return _in_one_kernel(step_keys, weights, first_block, num_normals, shared)
    none = tf.zeros([0, num_normals])
    normals = _normals_of_tiles(step_keys, weights, first_block, tiles)
    return in_passes(normals, none, lambda own, _: [own])[0]


def lane_rows(
    step_keys: tf.Tensor,
    weights: tf.Tensor,
    first_block: tf.Tensor,
    kept: tf.Tensor,
    then: Callable[..., list[tf.Tensor]],
    arguments: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
    """`then(normals, kept, *arguments)` for a TPU; see `passes.Then`.

    Args:
      step_keys: see `lane_normals`.
      weights: see `lane_normals`.
      first_block: see `lane_normals`.
      kept: float32, shape [vectors, num_normals].
      then: is called with some of the numbers at a time.
      arguments: tensors that `then` gets whole.
    """
    kept = tf.convert_to_tensor(kept)  # of a variable
    tiles = -(-int(kept.shape[1]) // TILE)
    first_block = barrier(first_block)
    normals = _normals_of_tiles(step_keys, weights, first_block, tiles)
    return in_passes(normals, kept, lambda own, part: then(own, part, *arguments))


def _normals_of_tiles(
    step_keys: tf.Tensor, weights: tf.Tensor, first_block: tf.Tensor, tiles: int
) -> NormalsOfTiles:
    chunk = tiles_of_pass(tiles)
    is_one = int(step_keys.shape[0]) == 1
    if is_one:
        half = -(-tiles // 2)
        places = tf.reshape(tf.range(2 * half), [2, half])
        shared = _shared(_repeated(step_keys, 2), first_block, places)
        shared = tf.reshape(shared, [1, -1])
    else:
        shared = _shared(step_keys, first_block, tf.range(tiles))
    # Not in the loop, which would repeat them in each pass.
    keys_of = {
        count: _repeated(step_keys, _smallest_factor(count)) if is_one else step_keys
        for count in {chunk, 2 * chunk, tiles % chunk} - {0}
    }

    def of_tiles(start: tf.Tensor | int, count: int) -> tf.Tensor:
        keys = keys_of[count]
        counter = _counters(first_block, start + tf.range(count))
        parts = tf.slice(shared, [0, start], [shared.shape[0], count])
        place = tf.bitwise.bitwise_and(tf.range(LANES), 1)
        if not is_one:
            counter = tf.reshape(counter, [1, count, ROWS, LANES])
            parts = parts[:, :, None, None]
            total = _weighted_sum(keys, weights, counter, parts, place)
            return tf.reshape(total, [-1])
        pieces = int(keys.shape[0])
        counter = tf.reshape(counter, [pieces, -1, ROWS, LANES])
        parts = tf.reshape(parts, [pieces, -1, 1, 1])
        numbers = one_of_pair(_words(keys, counter), parts, place)
        return weights[0] * tf.reshape(numbers, [-1])

    return of_tiles


def _in_one_kernel(
    step_keys: tf.Tensor,
    weights: tf.Tensor,
    first_block: tf.Tensor,
    num_normals: int,
    shared: tf.Tensor,
) -> tf.Tensor:
    """As `lane_normals`; what is left over is cut from the counters, not from the sum."""
    terms, tiles = shared.shape
    # Each term has counters of its own, for XLA would keep common ones in memory.
    zeros = barrier(tf.zeros([terms, 1], tf.uint64))
    counter = tf.reshape(_counters(first_block, tf.range(tiles)), [1, -1])
    counter = (counter + zeros)[:, :num_normals]
    block = tf.bitwise.right_shift(counter, tf.constant(11, tf.uint64)) - first_block
    place = tf.bitwise.bitwise_and(tf.range(TILE), 1) + tf.zeros([tiles, 1], tf.int32)
    of_number = tf.gather(
        shared[:, ::_TILES], tf.cast(block, tf.int32), axis=1, batch_dims=1
    )
    place = tf.reshape(place, [-1])[:num_normals]
    return _weighted_sum(step_keys, weights, counter, of_number, place)


def _smallest_factor(count: int) -> int:
    """Of a number above 1; 1 of 1."""
    return next((n for n in range(2, count + 1) if count % n == 0), 1)


def _repeated(step_key: tf.Tensor, pieces: int) -> tf.Tensor:
    """One key, [1, key_words], for each of some pieces of the counters.

    XLA computes what is one number before a kernel, not within: each of the words that
    follow from a single key would be in memory by itself, and takes 16 kB of a TPU's.
    """
    return barrier(tf.tile(step_key, [pieces, 1]))


def _shared(
    step_keys: tf.Tensor, first_block: tf.Tensor, tiles: tf.Tensor
) -> tf.Tensor:
    """`radius.shared_part` of each tile: that of its block. Shape [terms, tiles].

    `tiles` has this shape already, or is one dimension for all terms.
    """
    first = first_block + tf.constant(_SHARED, tf.uint64)
    counter = first + tf.cast(tiles // _TILES, tf.uint64)
    if len(counter.shape) == 1:
        counter = counter[None]
    first, second, *_ = _words(step_keys, counter)
    return shared_part(first, second)


def _counters(first_block: tf.Tensor, tiles: tf.Tensor) -> tf.Tensor:
    """Of the pairs that numbers of tiles belong to, uint64, shape [tiles, TILE]."""
    first = first_block * _PAIRS + tf.cast(tiles, tf.uint64) * (TILE // 2)
    return first[:, None] + tf.cast(tf.range(TILE) // 2, tf.uint64)


def _words(step_keys: tf.Tensor, counter: tf.Tensor) -> list[tf.Tensor]:
    """Four int32 words of each term and counter; `counter` has shape [terms or 1, ...]."""
    terms = int(step_keys.shape[0])
    ones = [1] * (len(counter.shape) - 1)
    keys = tf.reshape(tf.transpose(step_keys), [-1, terms, *ones])
    counter = tf.broadcast_to(counter, [terms, *counter.shape[1:]])
    words = source_of(step_keys).four(keys, counter)
    return [tf.bitcast(word, tf.int32) for word in words]


def _weighted_sum(
    step_keys: tf.Tensor,
    weights: tf.Tensor,
    counter: tf.Tensor,
    shared: tf.Tensor,
    place: tf.Tensor,
) -> tf.Tensor:
    """The weighted sum, of the counters' shape without its first dimension."""
    weights = tf.reshape(weights, [-1] + [1] * (len(counter.shape) - 1))
    numbers = one_of_pair(_words(step_keys, counter), shared, place)
    return tf.reduce_sum(weights * numbers, axis=0)
