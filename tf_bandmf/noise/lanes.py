"""Normals for TPUs, and for GPUs inside of a larger XLA program: one number a lane.

A TPU pads the last dimension of an array to 128 lanes: pairs in that dimension take 64
times their size. And where XLA cuts an expression with so many shared parts into kernels,
these exchange words through memory. So every number computes its own pair here, and keeps
the cosine or the sine: more arithmetic, and no memory. It is a loop, each pass of which is
one kernel, whose numbers go where they belong; on a GPU, which starts kernels slowly, of
few passes.

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
# Tiles of a pass of a TPU: 256 kB of numbers, or what divides the number of tiles; and of a
# GPU, 32 MB, for more terms than so many: of these XLA makes one kernel only up to there.
_USUAL, _DIVISORS, _OF_A_GPU = 64, range(160, 23, -1), 8192
FEW_TERMS = 2


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
    if traced_under_xla():
        from tensorflow.compiler.tf2xla.python import xla

        # A constant, and all counters would be constants of the program.
        (first_block,) = xla.optimization_barrier(first_block)
    tiles = -(-num_normals // TILE)
    chunk = tiles
    if kind == "TPU":
        chunk = _tiles_of_pass(tiles)
    elif int(step_keys.shape[0]) > FEW_TERMS:
        chunk = min(tiles, _OF_A_GPU)
    passes, rest = divmod(tiles, chunk)
    numbers = tf.range(tiles)
    shared = tf.stack(
        [_shared(key, first_block, numbers) for key in tf.unstack(step_keys)]
    )

    def of_tiles(start: tf.Tensor | int, count: int) -> tf.Tensor:
        parts = tf.slice(shared, [0, start], [shared.shape[0], count])
        numbers = start + tf.range(count)
        return _weighted_sum(step_keys, weights, first_block, numbers, parts)

    if passes == 1 and not rest:
        return tf.reshape(of_tiles(0, tiles), [-1])[:num_normals]
    if kind == "TPU":
        normals = _in_passes(of_tiles, tiles, chunk)
        return tf.reshape(normals, [-1])[:num_normals]
    return _in_long_passes(of_tiles, num_normals, chunk)


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


def _in_long_passes(
    of_tiles: Callable[..., tf.Tensor], num_normals: int, chunk: int
) -> tf.Tensor:
    """As `_in_passes`, into a vector that has no number more: nothing to cut off."""
    from tensorflow.compiler.tf2xla.python import xla

    size = chunk * TILE
    passes, rest = divmod(num_normals, size)

    def one_pass(i: tf.Tensor, written: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        normals = tf.reshape(of_tiles(i * chunk, chunk), [size])
        return i + 1, xla.dynamic_update_slice(written, normals, [i * size])

    _, written = tf.while_loop(
        lambda i, _: i < passes,
        one_pass,
        (0, tf.zeros([num_normals])),
        maximum_iterations=passes,
    )
    if rest:
        last = of_tiles(passes * chunk, -(-rest // TILE))
        last = tf.reshape(last, [-1])[:rest]
        written = xla.dynamic_update_slice(written, last, [passes * size])
    return written


def _tiles_of_pass(tiles: int) -> int:
    """Without a rest if that can be."""
    if tiles <= _USUAL:
        return tiles
    return next((chunk for chunk in _DIVISORS if tiles % chunk == 0), _USUAL)


def _shared(step_key: tf.Tensor, first_block: tf.Tensor, tiles: tf.Tensor) -> tf.Tensor:
    """`radius.shared_part` of each tile: that of its block."""
    first = first_block + tf.constant(_SHARED, tf.uint64)
    counters = first + tf.cast(tiles // _TILES, tf.uint64)
    first, second, *_ = source_of(step_key).four(step_key, counters)
    return shared_part(tf.bitcast(first, tf.int32), tf.bitcast(second, tf.int32))


def _weighted_sum(
    step_keys: tf.Tensor,
    weights: tf.Tensor,
    first_block: tf.Tensor,
    tiles: tf.Tensor,
    shared: tf.Tensor,
) -> tf.Tensor:
    """The weighted sum, shape [tiles, rows, lanes]; `shared` has shape [terms, tiles]."""
    lane = tf.range(_LANES)
    place = tf.bitwise.bitwise_and(lane, 1)
    pair = (_LANES * tf.range(_ROWS)[:, None] + lane) // 2
    first = first_block * _PAIRS + tf.cast(tiles, tf.uint64) * (TILE // 2)
    counter = first[:, None, None] + tf.cast(pair, tf.uint64)

    def term(key: tf.Tensor, weight: tf.Tensor, shared: tf.Tensor) -> tf.Tensor:
        words = source_of(key).four(key, counter)
        signed = [tf.bitcast(word, tf.int32) for word in words]
        return weight * one_of_pair(signed, shared[:, None, None], place)

    total = term(step_keys[0], weights[0], shared[0])
    num_terms = int(step_keys.shape[0])
    if not source_of(step_keys).of_many_operations:
        for j in range(1, num_terms):
            total += term(step_keys[j], weights[j], shared[j])
        return total
    return tf.while_loop(
        lambda j, _: j < num_terms,
        lambda j, total: (j + 1, total + term(step_keys[j], weights[j], shared[j])),
        (1, total),
        maximum_iterations=num_terms,
    )[1]
