"""Banded matrices as TensorFlow tensors, for optimization.

A strategy `C` is stored by columns, `columns[i, j] = C[j + i, j]`, shape [bands, n], as
in arXiv:2405.15913, section 3.1, because norms and constraints concern columns. The
computation of errors needs rows: `rows[l, i] = C[l, l - i]`, shape [n, bands].
"""

from __future__ import annotations

import tensorflow as tf

from tf_bandmf.workloads import Workload


def rows_from_columns(columns: tf.Tensor) -> tf.Tensor:
    """Converts a banded matrix from columns [bands, n] to rows [n, bands].

    Entries outside the matrix are dropped. `matrices.columns_from_rows` is the inverse.
    """
    bands, n = columns.shape
    # Shift diagonal i to the right by i positions: pad each diagonal to n + bands
    # entries, concatenate all diagonals, and cut the result into rows of n + bands - 1
    # entries.
    flat = tf.reshape(tf.pad(columns, [[0, 0], [0, bands]]), [-1])
    flat = flat[: bands * (n + bands - 1)]
    shifted = tf.reshape(flat, [bands, n + bands - 1])[:, :n]
    return tf.transpose(shifted)


def inside(bands: int, num_steps: int) -> tf.Tensor:
    """Returns a mask of columns, shape [bands, n]: 1 inside the matrix, 0 outside.

    Entry `[i, j]` of the columns is inside the matrix if `j + i < n`.
    """
    lengths = num_steps - tf.range(bands)
    return tf.sequence_mask(lengths, num_steps, dtype=tf.float64)


def times_inverse_workload(columns: tf.Tensor, workload: Workload) -> tf.Tensor:
    """Returns the rows of the matrix `M = C A^-1`, where `A` is the workload matrix.

    Entry `[l, i]` of the result is `M[l, l - i]`. Entries with `l < i` have no meaning,
    and the computation of errors ignores them. If the Toeplitz matrix `T` in
    `A^-1 = diag(1 / learning_rates) T` has q + 1 bands, the result has the shape
    [n, min(bands + q, n)]. The squared norm of row i of `M^-1` is the squared error of
    step i.
    """
    if workload.learning_rates is not None:
        columns = columns / workload.learning_rates
    rows = rows_from_columns(columns)
    coefficients = workload.inverse_coefficients
    # The product of C[l, l - i] and T[l - i, l - i - j] contributes to M[l, l - i - j].
    terms = [
        tf.pad(coefficient * rows, [[0, 0], [j, coefficients.size - 1 - j]])
        for j, coefficient in enumerate(coefficients)
    ]
    return tf.add_n(terms)[:, : columns.shape[1]]
