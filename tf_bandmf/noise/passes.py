"""What a TPU makes some numbers at a time, in a loop whose passes write in place.

Each pass draws normals, makes results of them and of kept vectors at the same places, and
writes these where they belong. The normals themselves are never in main memory.
"""

from __future__ import annotations

from typing import Any, Callable

import tensorflow as tf

from tf_bandmf.noise.devices import barrier

# A tile of a TPU.
ROWS, LANES = 8, 128
TILE = ROWS * LANES
# Tiles of a pass: 256 kB of numbers, or what divides the number of tiles.
_USUAL, _DIVISORS = 64, range(160, 23, -1)

# The normals of some tiles, [count * TILE], from the first tile and the count.
NormalsOfTiles = Callable[["tf.Tensor | int", int], tf.Tensor]
# Results, each float32, [numbers] or [rows, numbers], from normals [numbers] and kept
# vectors [vectors, numbers]. Each column depends on the same column alone. XLA clears the
# memory of those with rows before they are written; the others it would copy into rows.
Then = Callable[[tf.Tensor, tf.Tensor], list[tf.Tensor]]


def tiles_of_pass(tiles: int) -> int:
    """Without a rest if that can be."""
    if tiles <= _USUAL:
        return tiles
    return next((chunk for chunk in _DIVISORS if tiles % chunk == 0), _USUAL)


def in_passes(normals: NormalsOfTiles, kept: tf.Tensor, then: Then) -> list[tf.Tensor]:
    """`then(normals, kept)`, to be compiled by XLA.

    Args:
      normals: of all tiles that numbers are in.
      kept: float32, shape [vectors, numbers]; with no vectors, it says how many numbers.
      then: makes the results of one pass.
    """
    vectors, size = kept.shape
    tiles = -(-size // TILE)
    chunk = tiles_of_pass(tiles)
    if chunk == tiles:
        return then(normals(0, tiles)[:size], kept)
    passes, rest = divmod(tiles, chunk)
    numbers = chunk * TILE
    # If pass i writes row i, and there is no rest, XLA sees that all is overwritten, and
    # does not clear the memory first.
    shape = [tiles, ROWS, LANES] if rest else [passes, chunk * ROWS, LANES]
    rows = chunk if rest else 1

    def update(written: list[tf.Tensor], i: tf.Tensor | int, count: int) -> Any:
        """Writes `count` tiles from those of pass i on."""
        begin = i * numbers
        own = normals(i * chunk, count)
        if tf.is_tensor(i):
            part = _slice(kept, begin, count * TILE)
        else:
            part = kept[:, begin : begin + count * TILE]
            own = own[: part.shape[1]] if vectors else own
        return [
            _update(x, result, [0, begin])
            if _is_wide(result)
            else _update(x, _in_rows(result, shape), [i * rows, 0, 0])
            for x, result in zip(written, then(own, part))
        ]

    kinds = then(tf.zeros([numbers]), tf.zeros([vectors, numbers]))
    _, written = tf.while_loop(
        lambda i, _: i < passes,
        lambda i, written: (i + 1, update(written, i, chunk)),
        (0, [tf.zeros([x.shape[0], size] if _is_wide(x) else shape) for x in kinds]),
        maximum_iterations=passes,
    )
    if rest:
        written = update(written, passes, rest)
    elif vectors and passes * numbers > size:
        # XLA moved what would have reached past the end to where it does not.
        written = update(written, passes - 2, 2 * chunk)
    return [
        x if _is_wide(kind) else barrier(tf.reshape(x, [-1])[:size])
        for x, kind in zip(written, kinds)
    ]


def _is_wide(x: tf.Tensor) -> bool:
    return len(x.shape) == 2


def _in_rows(x: tf.Tensor, shape: list[int]) -> tf.Tensor:
    """Filled up to whole rows of the shape."""
    x = tf.pad(x, [[0, -int(x.shape[0]) % (shape[1] * shape[2])]])
    return tf.reshape(x, [-1, *shape[1:]])


def _slice(x: tf.Tensor, start: tf.Tensor, size: int) -> tf.Tensor:
    from tensorflow.compiler.tf2xla.python import xla

    return xla.dynamic_slice(x, tf.stack([0, start]), [int(x.shape[0]), size])


def _update(x: tf.Tensor, part: tf.Tensor, place: list[tf.Tensor | int]) -> tf.Tensor:
    from tensorflow.compiler.tf2xla.python import xla

    return xla.dynamic_update_slice(x, part, tf.stack(place))
