"""Power series in TensorFlow: differentiable first columns of Toeplitz matrices.

What `matrices.power_series` does in NumPy, for optimization: float64, matrix products
instead of a loop over terms, so that value and gradient of an inverse of `n` terms cost
O(n w) operations but only O(log n) sequential ones.
"""

from __future__ import annotations

import tensorflow as tf

# The first terms come from one triangular solve; doubling does the rest.
_FIRST_TERMS = 128

# Kernels longer than this are convolved by FFT.
_FFT_KERNEL = 64


def _power_of_two(x: int) -> int:
    """The smallest power of two that is >= x."""
    return 1 << max(x - 1, 0).bit_length()


def _toeplitz(column: tf.Tensor, num_rows: int, num_columns: int) -> tf.Tensor:
    """Entry [i, j] is `column[(j - i) mod len(column)]`, without gathering."""
    period = column.shape[0]
    flat = tf.tile(column, [num_rows])[: num_rows * (period - 1)]
    return tf.reshape(flat, [num_rows, period - 1])[:, :num_columns]


def convolve(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """The first `len(x)` terms of the product of two series; `len(kernel) <= len(x)`.

    Args:
      x: shape [n], static.
      kernel: shape [w], static.

    Returns:
      Shape [n].
    """
    n, w = x.shape[0], kernel.shape[0]
    if w > _FFT_KERNEL:
        length = [2 * _power_of_two(n)]
        product = tf.signal.rfft(x, length) * tf.signal.rfft(kernel, length)
        return tf.signal.irfft(product, length)[:n]
    # Rows of `block` terms times a Toeplitz matrix that reaches into the row before.
    block = _power_of_two(w)
    num_blocks = -(-n // block)
    rows = tf.reshape(tf.pad(x, [[0, num_blocks * block - n]]), [num_blocks, block])
    before = tf.concat([tf.zeros_like(rows[:1]), rows[:-1]], axis=0)
    # Entry [i, j] of the matrix is kernel[block + j - i], i < 2 block.
    reach = tf.pad(kernel, [[2 * block, block - w]])
    matrix = _toeplitz(reach, 2 * block, block)
    product = tf.matmul(tf.concat([before, rows], axis=1), matrix)
    return tf.reshape(product, [-1])[:n]


def inverse(a: tf.Tensor, num_terms: int) -> tf.Tensor:
    """The first `num_terms` coefficients of `1 / a`, differentiable.

    With the first `m` terms `h` known, the next `m` are `h` times a series of fewer
    than `w` terms: what the first `m` leave over in the product with `a`.

    Args:
      a: shape [w], static; `a[0] != 0`.
      num_terms: n.

    Returns:
      Shape [n].
    """
    a = a[:num_terms]
    w = a.shape[0]
    known = _FIRST_TERMS
    head = tf.pad(a[:known], [[0, 2 * known - min(w, known)]])
    # Lower-triangular Toeplitz matrix: entry [i, j] is a[i - j].
    matrix = _toeplitz(head, known, known)
    first = tf.one_hot([0], known, axis=0, dtype=a.dtype)
    h = tf.linalg.triangular_solve(matrix, first, lower=False, adjoint=True)[:, 0]
    while known < num_terms:
        if w == 1:
            h = tf.pad(h, [[0, known]])
        else:
            # left_over[i] = -sum_l a[i + l] h[known - l] for 0 <= i < kernel.
            kernel = min(known, w - 1)
            later = tf.reverse(a[1 : 2 * kernel], axis=[0])
            tail = tf.reverse(h[known - kernel :], axis=[0])
            product = tf.reverse(convolve(later, tail), axis=[0])
            left_over = -product[:kernel]
            h = tf.concat([h, convolve(h, left_over)], axis=0)
        known *= 2
    return h[:num_terms]
