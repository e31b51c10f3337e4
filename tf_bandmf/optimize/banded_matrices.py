"""Banded matrices as TensorFlow tensors, for optimization.

Variables are stored by columns, `columns[i, j] = C[j + i, j]`, shape [bands, n], as in
arXiv:2405.15913, section 3.1, because norms and constraints concern columns. The
computation of errors needs rows: `rows[l, i] = C[l, l - i]`, shape [n, bands].
"""

from __future__ import annotations

import tensorflow as tf

from tf_bandmf.workloads import Workload


def rows_from_columns(columns: tf.Tensor) -> tf.Tensor:
    """Inverts `matrices.columns_from_rows`; drops entries outside the matrix."""
    bands, n = columns.shape
    # This shifts diagonal i to the right by i positions: it pads rows to n + bands
    # entries, concatenates them, and cuts the result into rows of n + bands - 1
    # entries.
    flat = tf.reshape(tf.pad(columns, [[0, 0], [0, bands]]), [-1])
    flat = flat[: bands * (n + bands - 1)]
    shifted = tf.reshape(flat, [bands, n + bands - 1])[:, :n]
    return tf.transpose(shifted)


def inside(bands: int, num_steps: int) -> tf.Tensor:
    """Returns 1 for entries `[i, j]` inside the matrix, where `j + i < n`, else 0."""
    lengths = num_steps - tf.range(bands)
    return tf.sequence_mask(lengths, num_steps, dtype=tf.float64)


def toeplitz_columns(coefficients: tf.Tensor, num_steps: int) -> tf.Tensor:
    """Returns the columns of the Toeplitz matrix with these coefficients, [bands]."""
    columns = tf.tile(coefficients[:, None], [1, num_steps])
    return columns * inside(coefficients.shape[0], num_steps)


def times_inverse_workload(columns: tf.Tensor, workload: Workload) -> tf.Tensor:
    """Returns rows of `M = C A^-1 = (C diag(1 / learning_rates)) T`, [n, bands + q].

    `T` is the Toeplitz factor of `A^-1`, and `||row i of M^-1||^2` is the squared error
    of step `i`. Entries left of the matrix have no meaning; the computation of errors
    ignores them.
    """
    if workload.learning_rates is not None:
        columns = columns / workload.learning_rates
    rows = rows_from_columns(columns)
    coefficients = workload.inverse_coefficients
    # Column l - i of C meets entry j of the Toeplitz matrix at column l - i - j.
    terms = [
        tf.pad(coefficient * rows, [[0, 0], [j, coefficients.size - 1 - j]])
        for j, coefficient in enumerate(coefficients)
    ]
    return tf.add_n(terms)[:, : columns.shape[1]]
