"""Row norms of the inverse of a banded matrix in O(n w^2), for strategy errors.

Let `M` be an n x n lower triangular matrix with `w` diagonals, `S` a diagonal matrix,
`e` independent standard normals, and `x = M^-1 S e`. Then
`x[i] = (S[i] e[i] - sum_{j > 0} M[i, i-j] x[i-j]) / M[i, i]` is an autoregressive
process, and `||row i of M^-1 S||^2` is the variance of `x[i]`. The steps are divided
into blocks of `T >= w - 1` steps. For block t, let `D_t` be the diagonal block of `M`,
`L_t` the block to its left, `x_t`, `e_t` and `S_t` the entries of `x`, `e` and `S` in
the block, and `Sigma_t` the covariance of `x_t`. Then

    x_t = G_t x_{t-1} + D_t^-1 S_t e_t,              G_t = -D_t^-1 L_t,
    Sigma_t = G_t Sigma_{t-1} G_t^T + D_t^-1 S_t^2 D_t^-T.

A block depends only on the last `m = w - 1` steps of the previous block, so the scan
over blocks works with `m x m` matrices. To differentiate a weighted sum of the
variances, let the diagonal matrix `Omega_t` contain the weights of block t. A recursion
from the last block (with `R_t = 0`) to the first,

    R_{t-1} = G_t^T (Omega_t + R_t) G_t,

gives the gradient without the memory that reverse-mode differentiation would take. All
computations are in float64, run in TensorFlow on any device, and take O(n w) memory.

Published algorithms compute the row norms in O(n^2 w) (arXiv:2405.15913, Algorithms 2
and 4).
"""

from __future__ import annotations

import dataclasses
from typing import Callable

import tensorflow as tf

from tf_bandmf.analysis.affine_scans import affine_scan, reverse, shifted

# The minimum number of steps in a block. With smaller blocks, the overhead of
# TensorFlow's operations would dominate.
_MIN_BLOCK = 16


@dataclasses.dataclass(frozen=True)
class _Layout:
    """The division of a banded matrix into `N` blocks of `T` rows.

    Attributes:
      num_rows: n, the number of rows of the matrix.
      bands: w, the number of diagonals, at least 2.
      block: T, the number of rows of a block, at least w - 1.
    """

    num_rows: int
    bands: int
    block: int

    @classmethod
    def of(cls, num_rows: int, bands: int) -> _Layout:
        bands = max(bands, 2)
        block = max(bands - 1, min(_MIN_BLOCK, num_rows))
        return cls(num_rows, bands, num_rows if 4 * block > 3 * num_rows else block)

    @property
    def state(self) -> int:
        return self.bands - 1

    @property
    def num_blocks(self) -> int:
        return -(-self.num_rows // self.block)

    def split(self, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Splits a banded matrix into diagonal blocks and the blocks to their left.

        Rows that pad the last block are rows of the identity. Entries `rows[i, j]` with
        i < j lie outside of the matrix. They have no effect, because the recursion
        multiplies them by its initial state, which is 0.

        Args:
          rows: the diagonals of the matrix, at most w. Column j of `rows` contains the
            j-th diagonal below the main diagonal: `rows[i, j]` is the entry (i, i-j).

        Returns:
          The N diagonal blocks, shape [N, T, T], and, for each block, the `m = w - 1`
          columns to its left, shape [N, T, m].
        """
        missing = self.num_blocks * self.block - self.num_rows
        absent = self.bands - rows.shape[1]
        rows = tf.pad(rows, [[0, 0], [0, absent]])
        identity = tf.one_hot(tf.zeros([missing], tf.int32), self.bands)
        rows = tf.concat([rows, tf.cast(identity, rows.dtype)], axis=0)
        rows = tf.reverse(rows, axis=[1])
        rows = tf.reshape(rows, [self.num_blocks, self.block, self.bands])
        # Row i of a block must move i columns to the right. For this, each row is
        # padded, and the flat result is reshaped to rows that are one entry shorter.
        rows = tf.pad(rows, [[0, 0], [0, 0], [0, self.block]])
        width = self.bands + self.block
        flat = tf.reshape(rows, [self.num_blocks, self.block * width])
        flat = flat[:, : self.block * (width - 1)]
        both = tf.reshape(flat, [self.num_blocks, self.block, width - 1])
        return both[:, :, self.state :], both[:, :, : self.state]

    def merge(self, diagonal: tf.Tensor, left: tf.Tensor) -> tf.Tensor:
        """Returns the diagonals, shape [n, w], of a matrix that is given as blocks.

        This linear map is the adjoint (the transpose) of `split`.

        Args:
          diagonal: the N diagonal blocks, shape [N, T, T].
          left: for each block, the `m = w - 1` columns to its left, shape [N, T, m].
        """
        both = tf.concat([left, diagonal], axis=2)
        flat = tf.reshape(both, [self.num_blocks, -1])
        flat = tf.pad(flat, [[0, 0], [0, self.block]])
        width = self.bands + self.block
        rows = tf.reshape(flat, [self.num_blocks, self.block, width])
        rows = tf.reshape(rows[:, :, : self.bands], [-1, self.bands])
        return tf.reverse(rows[: self.num_rows], axis=[1])

    def split_vector(self, x: tf.Tensor, padding: float) -> tf.Tensor:
        missing = self.num_blocks * self.block - self.num_rows
        x = tf.concat([x, tf.cast(tf.fill([missing], padding), x.dtype)], axis=0)
        return tf.reshape(x, [self.num_blocks, self.block])


@dataclasses.dataclass(frozen=True)
class _Blocks:
    """Matrices of the recursions over the blocks of a banded matrix `M`.

    For w diagonals and N blocks of T rows, let `D_t` be the t-th diagonal block of M,
    and `L_t` the `m = w - 1` columns to its left.

    Attributes:
      layout: the division of the rows into blocks.
      inverse: `D_t^-1`, shape [N, T, T].
      transfer: `-D_t^-1 L_t`, shape [N, T, m]. The recursions apply it to the last m
        steps of the previous block.
    """

    layout: _Layout
    inverse: tf.Tensor
    transfer: tf.Tensor

    @classmethod
    def of(cls, layout: _Layout, rows: tf.Tensor) -> _Blocks:
        diagonal, left = layout.split(rows)
        eye = tf.eye(layout.block, batch_shape=[layout.num_blocks], dtype=rows.dtype)
        inverse = tf.linalg.triangular_solve(diagonal, eye, lower=True)
        return cls(layout, inverse, -tf.matmul(inverse, left))

    @property
    def state_transfer(self) -> tf.Tensor:
        return self.transfer[:, -self.layout.state :, :]

    @property
    def state_inverse(self) -> tf.Tensor:
        return self.inverse[:, -self.layout.state :, :]


def _adjoint(blocks: _Blocks, weights: tf.Tensor) -> tf.Tensor:
    """Returns matrices `E_t`; block t of `M^-T Omega M^-1` is `E_t D_t^-1`.

    Omega is a diagonal matrix of weights. Block t is the t-th diagonal block, and `D_t`
    is that of M. In the notation of the module's docstring, `E_t` is
    `D_t^-T (Omega_t + R_t)`. The result has the shape [N, T, T].

    Args:
      blocks: the N blocks of M, with T rows each.
      weights: the diagonal of Omega, shape [N, T].
    """
    transfer = blocks.transfer
    by_row = weights[:, :, None]
    shift = tf.matmul(transfer * by_row, transfer, transpose_a=True)
    step = tf.linalg.matrix_transpose(reverse(blocks.state_transfer))
    later = reverse(shifted(affine_scan(step, step, reverse(shift))))
    tail = tf.matmul(blocks.state_inverse, later, transpose_a=True)
    direct = tf.linalg.matrix_transpose(blocks.inverse) * weights[:, None, :]
    ahead = blocks.layout.block - blocks.layout.state
    return direct + tf.pad(tail, [[0, 0], [0, 0], [ahead, 0]])


def inverse_row_norms(
    rows: tf.Tensor, squared_scale: tf.Tensor | None = None
) -> tf.Tensor:
    """Returns `||row i of M^-1 S||^2` for a banded `M`; differentiable in `M`.

    Value and gradient take O(n w^2) operations and O(n w) memory.

    Args:
      rows: the diagonals of M, `rows[i, j] = M[i, i-j]`, float64, of static shape [n,
        w]. Entries with `i < j` are ignored.
      squared_scale: the diagonal of `S^2`, shape [n], for the diagonal matrix S; None
        if S is the identity. The function is not differentiable in `squared_scale`.

    Returns:
      Shape [n].
    """
    n, bands = rows.shape
    layout = _Layout.of(n, bands)
    if squared_scale is None:
        squared_scale = tf.ones([n], rows.dtype)
    by_column = layout.split_vector(squared_scale, 1.0)[:, None, :]

    @tf.custom_gradient
    def norms(rows: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        blocks = _Blocks.of(layout, rows)
        fresh = tf.matmul(
            blocks.state_inverse * by_column, blocks.state_inverse, transpose_b=True
        )
        transfer = blocks.state_transfer
        # `before` contains, for each block, the covariance of the m steps before it.
        before = shifted(affine_scan(transfer, transfer, fresh))
        inherited = tf.matmul(blocks.transfer, before)
        scaled = blocks.inverse * by_column
        variance = tf.reduce_sum(inherited * blocks.transfer, axis=-1)
        variance += tf.reduce_sum(scaled * blocks.inverse, axis=-1)

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            # Let Omega be the diagonal matrix of the weights `upstream`, and Sigma the
            # covariance M^-1 S^2 M^-T. A change dM of M changes tr(Omega Sigma) by
            # -2 tr(dM Sigma Omega M^-1). The gradient is computed block by block.
            adjoint = -2.0 * _adjoint(blocks, layout.split_vector(upstream, 0.0))
            covariance = tf.matmul(inherited, blocks.transfer, transpose_b=True)
            covariance += tf.matmul(scaled, blocks.inverse, transpose_b=True)
            diagonal = tf.matmul(adjoint, covariance)
            band = layout.merge(diagonal, tf.matmul(adjoint, inherited))
            return band[:, :bands]

        return tf.reshape(variance, [-1])[:n], gradient

    return norms(rows)


def filtered_row_norms(rows: tf.Tensor, average: tf.Tensor) -> tf.Tensor:
    """Returns `||row i of M^-1 N||^2` for banded `M` and `N`; differentiable in both.

    If `z` are independent standard normals and `M x = N z`, then the sequence
    `z[0], x[0], z[1], x[1], ...` is an autoregressive process of length `2 n`, in which
    no fresh noise enters at the `x[i]`. Therefore `inverse_row_norms` can compute the
    row norms of `M^-1 N`.

    Args:
      rows: the w diagonals of M, `rows[i, j] = M[i, i-j]`, shape [n, w].
      average: the p diagonals of N, `average[i, j] = N[i, i-j]`, shape [n, p]. Entries
        with `i < j` must be zero.

    Returns:
      Shape [n].
    """
    n, w, p = rows.shape[0], rows.shape[1], average.shape[1]
    # In the sequence z[0], x[0], z[1], x[1], ..., the entry x[i-j] comes 2 j places
    # before x[i], and z[i-j] comes 2 j + 1 places before x[i].
    width = 2 * max(w, p)
    pairs = tf.stack(
        [
            tf.pad(rows, [[0, 0], [0, width // 2 - w]]),
            -tf.pad(average, [[0, 0], [0, width // 2 - p]]),
        ],
        axis=2,
    )
    outputs = tf.reshape(pairs, [n, width])
    inputs = tf.one_hot(tf.zeros([n], tf.int32), width, dtype=rows.dtype)
    interleaved = tf.reshape(tf.stack([inputs, outputs], axis=1), [2 * n, width])
    fresh = tf.tile(tf.constant([1.0, 0.0], rows.dtype), [n])
    return inverse_row_norms(interleaved, fresh)[1::2]


def doubly_filtered_band(
    filter_rows: tf.Tensor, rows: tf.Tensor, weights: tf.Tensor
) -> tf.Tensor:
    """Returns the band of `H = C^-1 (M^-T Omega M^-1) C^-T` for banded `C` and `M`.

    Omega is a diagonal matrix of weights. Let C be a strategy, A a workload,
    `M = C A^-1` and `X = C^T C`. Then `H = X^-1 A^T Omega A X^-1`, which is minus the
    gradient of the weighted error with respect to `X`. For a process with the
    covariance `M^-T Omega M^-1`, the filter `C^-1` returns a process with the
    covariance `H`. Affine recursions over blocks compute this covariance.

    Args:
      filter_rows: the b <= w diagonals of C, `filter_rows[i, j] = C[i, i-j]`, shape [n,
        b].
      rows: the w diagonals of M, `rows[i, j] = M[i, i-j]`, shape [n, w].
      weights: the diagonal of Omega, shape [n].

    Returns:
      The first b diagonals of H, shape [n, b]. Entry [i, j] is `H[i, i-j]`, or 0 if
      `i < j`.
    """
    layout = _Layout.of(*rows.shape)
    m = _Blocks.of(layout, rows)
    c = _Blocks.of(layout, filter_rows)
    adjoint = _adjoint(m, layout.split_vector(weights, 0.0))
    cross = tf.matmul(c.state_inverse, m.state_inverse, transpose_b=True)
    cross = shifted(affine_scan(c.state_transfer, m.state_transfer, cross))
    # For each block, the next line computes the covariance between two vectors: the
    # inputs of the filter C^-1 in the block, and the last m outputs of this filter
    # before the block.
    with_past = tf.matmul(tf.matmul(adjoint, m.transfer), cross, transpose_b=True)
    with_past = tf.matmul(c.inverse, with_past)
    fresh = tf.matmul(tf.matmul(c.inverse, adjoint), m.inverse)
    fresh = tf.matmul(fresh, c.inverse, transpose_b=True)
    mixed = tf.matmul(with_past, c.transfer, transpose_b=True)
    fresh += mixed + tf.linalg.matrix_transpose(mixed)
    state = layout.state
    before = shifted(
        affine_scan(c.state_transfer, c.state_transfer, fresh[:, -state:, -state:])
    )
    inherited = tf.matmul(c.transfer, before)
    diagonal = fresh + tf.matmul(inherited, c.transfer, transpose_b=True)
    band: tf.Tensor = layout.merge(diagonal, inherited + with_past)
    return band[:, : filter_rows.shape[1]]
