"""Affine recursions over sequences of N matrices, with sequential depth O(log N)."""

from __future__ import annotations

import tensorflow as tf

# `affine_scan` runs up to _PLAIN steps one after the other. It divides more steps into
# lanes of _LANE consecutive steps, and the lanes run in parallel.
_LANE, _PLAIN = 16, 64


def affine_scan(left: tf.Tensor, right: tf.Tensor, shift: tf.Tensor) -> tf.Tensor:
    """Returns all `Z_t = left_t Z_{t-1} right_t^T + shift_t` with `Z_{-1} = 0`.

    The N steps are divided into lanes of consecutive steps, and the lanes run in
    parallel. First, the affine map of each lane is computed. Then a recursive scan
    composes these maps. Finally, the values `Z_t` within the lanes are computed. The
    memory is linear and the sequential depth is logarithmic in the number of steps.

    Args:
      left: shape [N, m, m]; N must be known statically.
      right: shape [N, m, m]. If it equals `left`, use the same tensor object for both.
        This saves a quarter of the operations on the affine maps of the lanes.
      shift: shape [N, m, m].

    Returns:
      Z, shape [N, m, m].
    """
    num = shift.shape[0]
    if num <= _PLAIN:
        return _sequential_scan(left, right, shift, tf.zeros_like(shift[0]))
    lanes = -(-num // _LANE)
    steps = [_by_step(x, lanes) for x in (left, shift)]
    steps.insert(1, steps[0] if right is left else _by_step(right, lanes))

    def compose(
        index: tf.Tensor, a: tf.Tensor, b: tf.Tensor, c: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        f, k, r = (x[index] for x in steps)
        composed = tf.matmul(f, a)
        other = composed if right is left else tf.matmul(k, b)
        c = tf.matmul(tf.matmul(f, c), k, transpose_b=True) + r
        return index + 1, composed, other, c

    first = (tf.constant(1), *(x[0] for x in steps))
    _, a, b, c = tf.while_loop(
        lambda index, *_: index < _LANE, compose, first, parallel_iterations=1
    )
    ends = affine_scan(a, a if right is left else b, c)
    filled = _sequential_scan(steps[0], steps[1], steps[2], shifted(ends))
    size = shift.shape[-1]
    return tf.reshape(tf.transpose(filled, [1, 0, 2, 3]), [-1, size, size])[:num]


def _by_step(x: tf.Tensor, lanes: int) -> tf.Tensor:
    """Pads a sequence [N, m, m] with zero matrices and divides it into lanes.

    Returns:
      Shape [_LANE, lanes, m, m]. Entry `[i, j]` is step i of lane j.
    """
    num, _, size = x.shape
    x = tf.pad(x, [[0, lanes * _LANE - num], [0, 0], [0, 0]])
    return tf.transpose(tf.reshape(x, [lanes, _LANE, size, size]), [1, 0, 2, 3])


def _sequential_scan(
    left: tf.Tensor, right: tf.Tensor, shift: tf.Tensor, start: tf.Tensor
) -> tf.Tensor:
    def step(z: tf.Tensor, operands: tuple[tf.Tensor, ...]) -> tf.Tensor:
        f, k, r = operands
        return tf.matmul(tf.matmul(f, z), k, transpose_b=True) + r

    return tf.scan(step, (left, right, shift), start, parallel_iterations=1)


def reverse(x: tf.Tensor) -> tf.Tensor:
    """Returns `x` reversed along the first axis."""
    return tf.reverse(x, axis=[0])


def shifted(x: tf.Tensor) -> tf.Tensor:
    """Returns `x` shifted by one along the first axis, with zeros at index 0."""
    return tf.concat([tf.zeros_like(x[:1]), x[:-1]], axis=0)
