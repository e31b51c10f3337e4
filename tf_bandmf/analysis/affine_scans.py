"""Affine recursions over matrices, in logarithmic depth."""

from __future__ import annotations

import tensorflow as tf

from tf_bandmf.analysis import numbers
from tf_bandmf.analysis.numbers import Numbers, matmul, moved, plus

# Steps of one lane of the two-level scan, and the longest plain sequential scan.
_LANE, _PLAIN = 16, 64


def affine_scan(left: Numbers, right: Numbers, shift: Numbers) -> Numbers:
    """All `Z_t = left_t Z_{t-1} right_t^T + shift_t` with `Z_{-1} = 0`.

    Lanes of consecutive steps run side by side: one pass finds the affine map of each
    lane, the maps are scanned by recursion, a second pass fills in the lanes. Memory is
    linear; the sequential depth is logarithmic in the number of steps.

    Args:
      left: shape [N, m, m]; N is static.
      right: shape [N, m, m]. Pass the same tensor as `left` and `right` for
        congruences: that saves a fourth of the first pass.
      shift: shape [N, m, m].

    Returns:
      Z, shape [N, m, m].
    """
    num = numbers.shape(shift)[0]
    if num <= _PLAIN:
        start = moved(lambda x: tf.zeros_like(x[0]), shift)
        return _sequential_scan(left, right, shift, start)
    lanes = -(-num // _LANE)
    steps = [_by_step(x, lanes) for x in (left, shift)]
    steps.insert(1, steps[0] if right is left else _by_step(right, lanes))

    def compose(
        index: tf.Tensor, a: Numbers, b: Numbers, c: Numbers
    ) -> tuple[tf.Tensor, Numbers, Numbers, Numbers]:
        f, k, r = (moved(lambda x: x[index], x) for x in steps)
        composed = matmul(f, a)
        other = composed if right is left else matmul(k, b)
        c = plus(matmul(matmul(f, c), k, transpose_b=True), r)
        return index + 1, composed, other, c

    first = (tf.constant(1), *(moved(lambda x: x[0], x) for x in steps))
    _, a, b, c = tf.while_loop(
        lambda index, *_: index < _LANE, compose, first, parallel_iterations=1
    )
    ends = affine_scan(a, a if right is left else b, c)
    filled = _sequential_scan(steps[0], steps[1], steps[2], shifted(ends))
    size = numbers.shape(shift)[-1]
    return moved(
        lambda x: tf.reshape(tf.transpose(x, [1, 0, 2, 3]), [-1, size, size])[:num],
        filled,
    )


def _by_step(x: Numbers, lanes: int) -> Numbers:
    """[N, m, m] padded with zeros and laid out as [lane length, lanes, m, m]."""
    num, _, size = numbers.shape(x)

    def laid_out(x: tf.Tensor) -> tf.Tensor:
        x = tf.pad(x, [[0, lanes * _LANE - num], [0, 0], [0, 0]])
        return tf.transpose(tf.reshape(x, [lanes, _LANE, size, size]), [1, 0, 2, 3])

    return moved(laid_out, x)


def _sequential_scan(
    left: Numbers, right: Numbers, shift: Numbers, start: Numbers
) -> Numbers:
    def step(z: Numbers, operands: tuple[Numbers, ...]) -> Numbers:
        f, k, r = operands
        return plus(matmul(matmul(f, z), k, transpose_b=True), r)

    return tf.scan(step, (left, right, shift), start, parallel_iterations=1)


def reverse(x: Numbers) -> Numbers:
    """Along the first axis."""
    return moved(lambda x: tf.reverse(x, axis=[0]), x)


def shifted(x: Numbers) -> Numbers:
    """`x` one block later, zero for the first block."""
    return moved(lambda x: tf.concat([tf.zeros_like(x[:1]), x[:-1]], axis=0), x)


def transposed(x: Numbers) -> Numbers:
    """Of matrices [N, m, m]."""
    return moved(tf.linalg.matrix_transpose, x)
