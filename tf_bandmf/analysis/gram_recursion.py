"""Gram matrices of the inverse of a banded matrix, in O(n w^2): the error engine.

Let `M` be lower triangular with `w` diagonals and `x = M^-1 S e` with independent unit
normals `e` and a diagonal `S`. Then `x[i] = (S[i] e[i] - sum_j M[i, i-j] x[i-j]) /
M[i, i]` is an autoregressive process, and `||row i of M^-1 S||^2` is its variance. In
blocks of `T >= w - 1` steps, with `D_t` the diagonal block of `M` and `L_t` the block
to its left,

    x_t = G_t x_{t-1} + D_t^-1 S_t e_t,              G_t = -D_t^-1 L_t,
    Sigma_t = G_t Sigma_{t-1} G_t^T + D_t^-1 S_t^2 D_t^-T.

Only the last `m = w - 1` steps of a block matter to the next one, so that the scan over
blocks works with `m x m` matrices. The adjoint is the same recursion backwards,

    R_{t-1} = G_t^T (Omega_t + R_t) G_t,

which gives the gradient without storing what reverse-mode differentiation would store.
Everything is float64, runs in TensorFlow on any device, and takes O(n w) memory.

Published algorithms evaluate the same quantity in O(n^2 w) (arXiv:2405.15913,
Algorithms 2 and 4).
"""

from __future__ import annotations

import dataclasses
from typing import Callable

import tensorflow as tf

# Steps of one lane of the two-level scan, and the longest plain sequential scan.
_LANE, _PLAIN = 16, 64

# Smaller blocks than this waste time on the overhead of small matrices.
_MIN_BLOCK = 16


def affine_scan(left: tf.Tensor, right: tf.Tensor, shift: tf.Tensor) -> tf.Tensor:
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
    starts = tf.concat([tf.zeros_like(ends[:1]), ends[:-1]], axis=0)
    filled = _sequential_scan(steps[0], steps[1], steps[2], starts)
    size = shift.shape[-1]
    return tf.reshape(tf.transpose(filled, [1, 0, 2, 3]), [-1, size, size])[:num]


def _by_step(x: tf.Tensor, lanes: int) -> tf.Tensor:
    """[N, m, m] padded with zeros and laid out as [lane length, lanes, m, m]."""
    size = x.shape[-1]
    x = tf.pad(x, [[0, lanes * _LANE - x.shape[0]], [0, 0], [0, 0]])
    return tf.transpose(tf.reshape(x, [lanes, _LANE, size, size]), [1, 0, 2, 3])


def _sequential_scan(
    left: tf.Tensor, right: tf.Tensor, shift: tf.Tensor, start: tf.Tensor
) -> tf.Tensor:
    def step(z: tf.Tensor, operands: tuple[tf.Tensor, ...]) -> tf.Tensor:
        f, k, r = operands
        return tf.matmul(tf.matmul(f, z), k, transpose_b=True) + r

    return tf.scan(step, (left, right, shift), start, parallel_iterations=1)


def _reverse(x: tf.Tensor) -> tf.Tensor:
    return tf.reverse(x, axis=[0])


def _shifted(x: tf.Tensor) -> tf.Tensor:
    """`x` one block later, zero for the first block."""
    return tf.concat([tf.zeros_like(x[:1]), x[:-1]], axis=0)


@dataclasses.dataclass(frozen=True)
class _Layout:
    """How `n` rows of `w` diagonals are cut into `N` blocks of `T` rows."""

    num_rows: int
    bands: int
    block: int

    @classmethod
    def of(cls, num_rows: int, bands: int, block: int | None) -> _Layout:
        bands = max(bands, 2)
        smallest = max(bands - 1, min(_MIN_BLOCK, num_rows))
        if 4 * smallest > 3 * num_rows:
            smallest = num_rows
        block = smallest if block is None else block
        if block < bands - 1:
            raise ValueError(f"block_size must be >= bands - 1, found {block}.")
        return cls(num_rows, bands, block)

    @property
    def state(self) -> int:
        return self.bands - 1

    @property
    def num_blocks(self) -> int:
        return -(-self.num_rows // self.block)

    def split(self, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Rows [n, <= w] as diagonal blocks [N, T, T] and left blocks [N, T, m].

        Rows past `n` become rows of the identity. Entries left of the matrix meet a
        zero state and never matter.
        """
        missing = self.num_blocks * self.block - self.num_rows
        rows = tf.pad(rows, [[0, 0], [0, self.bands - rows.shape[1]]])
        identity = tf.one_hot(
            tf.zeros([missing], tf.int32), self.bands, dtype=rows.dtype
        )
        rows = tf.reverse(tf.concat([rows, identity], axis=0), axis=[1])
        rows = tf.reshape(rows, [self.num_blocks, self.block, self.bands])
        # Row a of a block starts a columns further right: pad, and read shifted.
        rows = tf.pad(rows, [[0, 0], [0, 0], [0, self.block]])
        width = self.bands + self.block
        flat = tf.reshape(rows, [self.num_blocks, self.block * width])
        flat = flat[:, : self.block * (width - 1)]
        both = tf.reshape(flat, [self.num_blocks, self.block, width - 1])
        return both[:, :, self.state :], both[:, :, : self.state]

    def merge(self, diagonal: tf.Tensor, left: tf.Tensor) -> tf.Tensor:
        """The band [n, w] of diagonal and left blocks: the adjoint of `split`."""
        both = tf.concat([left, diagonal], axis=2)
        flat = tf.reshape(both, [self.num_blocks, -1])
        flat = tf.pad(flat, [[0, 0], [0, self.block]])
        width = self.bands + self.block
        rows = tf.reshape(flat, [self.num_blocks, self.block, width])
        rows = tf.reshape(rows[:, :, : self.bands], [-1, self.bands])
        return tf.reverse(rows[: self.num_rows], axis=[1])

    def split_vector(self, x: tf.Tensor, padding: float) -> tf.Tensor:
        missing = self.num_blocks * self.block - self.num_rows
        x = tf.pad(x, [[0, missing]], constant_values=padding)
        return tf.reshape(x, [self.num_blocks, self.block])


@dataclasses.dataclass(frozen=True)
class _Blocks:
    """A banded matrix `M` in blocks, with what the recursions need of it.

    Attributes:
      layout: the cut.
      inverse: `D_t^-1`, [N, T, T].
      transfer: `-D_t^-1 L_t`, [N, T, m]: from the last m steps of the block before.
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


def _covariance_before(blocks: _Blocks, squared_scale: tf.Tensor | None) -> tf.Tensor:
    """Covariance of the last m steps before each block, [N, m, m]."""
    fresh = _scaled(blocks.state_inverse, squared_scale)
    fresh = tf.matmul(fresh, blocks.state_inverse, transpose_b=True)
    transfer = blocks.state_transfer
    return _shifted(affine_scan(transfer, transfer, fresh))


def _scaled(inverse: tf.Tensor, squared_scale: tf.Tensor | None) -> tf.Tensor:
    return inverse if squared_scale is None else inverse * squared_scale[:, None, :]


def _adjoint(blocks: _Blocks, weights: tf.Tensor) -> tf.Tensor:
    """`E_t = D_t^-T (Omega_t + R_t)`, [N, T, T], from weights `Omega` [N, T].

    `E_t D_t^-1` are the diagonal blocks of `M^-T Omega M^-1`.
    """
    transfer = blocks.transfer
    shift = tf.matmul(transfer * weights[:, :, None], transfer, transpose_a=True)
    step = tf.linalg.matrix_transpose(_reverse(blocks.state_transfer))
    later = _reverse(_shifted(affine_scan(step, step, _reverse(shift))))
    tail = tf.matmul(blocks.state_inverse, later, transpose_a=True)
    direct = tf.linalg.matrix_transpose(blocks.inverse) * weights[:, None, :]
    ahead = blocks.layout.block - blocks.layout.state
    return direct + tf.pad(tail, [[0, 0], [0, 0], [ahead, 0]])


def inverse_row_norms(
    rows: tf.Tensor,
    squared_scale: tf.Tensor | None = None,
    block_size: int | None = None,
) -> tf.Tensor:
    """`||row i of M^-1 S||^2` for a banded `M`; differentiable with respect to `M`.

    O(n w^2) operations and O(n w) memory for value and gradient.

    Args:
      rows: `M[i, i-j] = rows[i, j]`, shape [n, w], float64, static shape; entries left
        of the matrix are ignored.
      squared_scale: the diagonal of `S^2`, shape [n], or None for ones; a constant to
        differentiation.
      block_size: T >= w - 1, for tests and tuning.

    Returns:
      Shape [n].
    """
    layout = _Layout.of(rows.shape[0], rows.shape[1], block_size)
    scale = None if squared_scale is None else layout.split_vector(squared_scale, 1.0)

    @tf.custom_gradient
    def norms(rows: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        blocks = _Blocks.of(layout, rows)
        before = _covariance_before(blocks, scale)
        inherited = tf.matmul(blocks.transfer, before)
        scaled = _scaled(blocks.inverse, scale)
        variance = tf.reduce_sum(inherited * blocks.transfer, axis=2)
        variance += tf.reduce_sum(scaled * blocks.inverse, axis=2)

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            # d tr(Omega B S^2 B^T) = -2 tr(dM Sigma Omega B), in blocks.
            weights = layout.split_vector(upstream, 0.0)
            adjoint = -2.0 * _adjoint(blocks, weights)
            covariance = tf.matmul(inherited, blocks.transfer, transpose_b=True)
            covariance += tf.matmul(scaled, blocks.inverse, transpose_b=True)
            diagonal = tf.matmul(adjoint, covariance)
            left = tf.matmul(adjoint, inherited)
            return layout.merge(diagonal, left)[:, : rows.shape[1]]

        return tf.reshape(variance, [-1])[: layout.num_rows], gradient

    return norms(rows)


def filtered_row_norms(rows: tf.Tensor, average: tf.Tensor) -> tf.Tensor:
    """`||row i of M^-1 N||^2` for banded `M` and `N`; differentiable in both.

    With `z = e` and `M x = N z` the sequence `z[0], x[0], z[1], x[1], ...` is an
    autoregressive process of twice the length whose odd members have no input of their
    own: one engine serves both.

    Args:
      rows: `M[i, i-j] = rows[i, j]`, shape [n, w].
      average: `N[i, i-j] = average[i, j]`, shape [n, p]; entries left of the matrix
        must be zero.

    Returns:
      Shape [n].
    """
    n, w, p = rows.shape[0], rows.shape[1], average.shape[1]
    # x[i-j] stands 2 j places before x[i], and z[i-j] stands 2 j + 1 places before.
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
    filter_rows: tf.Tensor,
    rows: tf.Tensor,
    weights: tf.Tensor,
    block_size: int | None = None,
) -> tf.Tensor:
    """The band of `H = C^-1 (M^-T Omega M^-1) C^-T` for banded `C` and `M`.

    With `M = C A^-1` this is `X^-1 A^T Omega A X^-1`, `X = C^T C`: minus the gradient of
    the weighted error with respect to `X`. Forwards, `C^-1` filters a process whose
    covariance `M^-T Omega M^-1` is that of a backward one: the cross covariance
    `Z = C^-1 M^-T` and `H` itself both follow affine recursions over blocks.

    Args:
      filter_rows: C, shape [n, b], b <= w.
      rows: M, shape [n, w].
      weights: the diagonal of Omega, shape [n].
      block_size: as in `inverse_row_norms`.

    Returns:
      `H[i, i-j]`, shape [n, b]; entries left of the matrix are zero.
    """
    layout = _Layout.of(rows.shape[0], rows.shape[1], block_size)
    m = _Blocks.of(layout, rows)
    c = _Blocks.of(layout, filter_rows)
    adjoint = _adjoint(m, layout.split_vector(weights, 0.0))
    cross = tf.matmul(c.state_inverse, m.state_inverse, transpose_b=True)
    cross = _shifted(affine_scan(c.state_transfer, m.state_transfer, cross))
    # Covariance of this block's input with the last m outputs before it.
    with_past = tf.matmul(tf.matmul(adjoint, m.transfer), cross, transpose_b=True)
    with_past = tf.matmul(c.inverse, with_past)
    fresh = tf.matmul(tf.matmul(c.inverse, adjoint), m.inverse)
    fresh = tf.matmul(fresh, c.inverse, transpose_b=True)
    mixed = tf.matmul(with_past, c.transfer, transpose_b=True)
    fresh += mixed + tf.linalg.matrix_transpose(mixed)
    state = layout.state
    before = _shifted(
        affine_scan(c.state_transfer, c.state_transfer, fresh[:, -state:, -state:])
    )
    inherited = tf.matmul(c.transfer, before)
    diagonal = fresh + tf.matmul(inherited, c.transfer, transpose_b=True)
    band = layout.merge(diagonal, inherited + with_past)
    return band[:, : filter_rows.shape[1]]
