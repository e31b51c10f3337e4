"""Normals for TPUs, and for GPUs inside of a larger XLA program: one number a lane.

A TPU pads the last dimension of an array to 128 lanes: pairs in that dimension take 64
times their size. And where XLA cuts an expression with so many shared parts into kernels,
these exchange words through memory. So every number computes its own pair here, and keeps
the cosine or the sine: more arithmetic, and no memory. Terms are a dimension, over which
XLA sums within the kernel: the expression is that of one term, however many there are.
On a GPU it is one kernel. On a TPU it is a loop, each pass of which is one kernel, whose
numbers go where they belong.

The numbers are those of `normals`: the same words, and the same operations on them.
"""

from __future__ import annotations

from typing import Callable

import tensorflow as tf

from tf_bandmf.noise.box_muller import one_of_pair
from tf_bandmf.noise.devices import traced_under_xla
from tf_bandmf.noise.radius import shared_part
from tf_bandmf.noise.word_sources import source_of

# A tile of a TPU. So many make a block of `normals`; its pairs have these counters, and
# what they share those from SHARED on.
_ROWS, _LANES = 8, 128
TILE = _ROWS * _LANES
_TILES, _PAIRS, _SHARED = 4, 2 * TILE, 1 << 63
# Tiles of a pass of a TPU: 256 kB of numbers, or what divides the number of tiles.
_USUAL, _DIVISORS = 64, range(160, 23, -1)


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
    first_block = _not_constant(first_block)
    tiles = -(-num_normals // TILE)
    if kind == "GPU":
        shared = _shared(step_keys, first_block, tf.range(tiles))
        return _in_one_kernel(step_keys, weights, first_block, num_normals, shared)
    chunk = _tiles_of_pass(tiles)
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
        for count in {chunk, tiles % chunk} - {0}
    }

    def of_tiles(start: tf.Tensor | int, count: int) -> tf.Tensor:
        keys = keys_of[count]
        counter = _counters(first_block, start + tf.range(count))
        parts = tf.slice(shared, [0, start], [shared.shape[0], count])
        place = tf.bitwise.bitwise_and(tf.range(_LANES), 1)
        if not is_one:
            counter = tf.reshape(counter, [1, count, _ROWS, _LANES])
            return _weighted_sum(keys, weights, counter, parts[:, :, None, None], place)
        pieces = int(keys.shape[0])
        counter = tf.reshape(counter, [pieces, -1, _ROWS, _LANES])
        parts = tf.reshape(parts, [pieces, -1, 1, 1])
        numbers = one_of_pair(_words(keys, counter), parts, place)
        return weights[0] * tf.reshape(numbers, [count, _ROWS, _LANES])

    if chunk == tiles:
        return tf.reshape(of_tiles(0, tiles), [-1])[:num_normals]
    return tf.reshape(_in_passes(of_tiles, tiles, chunk), [-1])[:num_normals]


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
    zeros = _not_constant(tf.zeros([terms, 1], tf.uint64))
    counter = tf.reshape(_counters(first_block, tf.range(tiles)), [1, -1])
    counter = (counter + zeros)[:, :num_normals]
    block = tf.bitwise.right_shift(counter, tf.constant(11, tf.uint64)) - first_block
    place = tf.bitwise.bitwise_and(tf.range(TILE), 1) + tf.zeros([tiles, 1], tf.int32)
    of_number = tf.gather(
        shared[:, ::_TILES], tf.cast(block, tf.int32), axis=1, batch_dims=1
    )
    place = tf.reshape(place, [-1])[:num_normals]
    return _weighted_sum(step_keys, weights, counter, of_number, place)


def _in_passes(of_tiles: Callable[..., tf.Tensor], tiles: int, chunk: int) -> tf.Tensor:
    """All tiles, of which each pass writes `chunk` in place, and the rest thereafter."""
    from tensorflow.compiler.tf2xla.python import xla

    passes, rest = divmod(tiles, chunk)
    # If pass i writes row i, and there is no rest, XLA sees that all is overwritten, and
    # does not clear the memory first.
    shape = [tiles, _ROWS, _LANES] if rest else [passes, chunk * _ROWS, _LANES]
    rows = chunk if rest else 1

    def one_pass(i: tf.Tensor, written: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        normals = tf.reshape(of_tiles(i * chunk, chunk), [rows, *shape[1:]])
        place = tf.stack([i * rows, 0, 0])
        return i + 1, xla.dynamic_update_slice(written, normals, place)

    _, written = tf.while_loop(
        lambda i, _: i < passes,
        one_pass,
        (0, tf.zeros(shape)),
        maximum_iterations=passes,
    )
    if rest:
        start = passes * chunk
        written = xla.dynamic_update_slice(
            written, of_tiles(start, rest), [start, 0, 0]
        )
    return written


def _tiles_of_pass(tiles: int) -> int:
    """Without a rest if that can be."""
    if tiles <= _USUAL:
        return tiles
    return next((chunk for chunk in _DIVISORS if tiles % chunk == 0), _USUAL)


def _smallest_factor(count: int) -> int:
    """Of a number above 1; 1 of 1."""
    return next((n for n in range(2, count + 1) if count % n == 0), 1)


def _repeated(step_key: tf.Tensor, pieces: int) -> tf.Tensor:
    """One key, [1, key_words], for each of some pieces of the counters.

    XLA computes what is one number before a kernel, not within: each of the words that
    follow from a single key would be in memory by itself, and takes 16 kB of a TPU's.
    """
    return _not_constant(tf.tile(step_key, [pieces, 1]))


def _not_constant(x: tf.Tensor) -> tf.Tensor:
    """Not for XLA, which would make constants of the program of all that follows."""
    if not traced_under_xla():
        return x
    from tensorflow.compiler.tf2xla.python import xla

    return xla.optimization_barrier(x)[0]


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
