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

import contextlib
import dataclasses
from typing import Callable, cast

import tensorflow as tf

from tf_bandmf.analysis import numbers
from tf_bandmf.analysis.affine_scans import affine_scan, reverse, shifted, transposed
from tf_bandmf.analysis.numbers import Numbers, matmul, moved, plus, times

# Smaller blocks than this waste time on the overhead of small matrices.
_MIN_BLOCK = 16


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

    def split(self, rows: Numbers) -> tuple[Numbers, Numbers]:
        """Rows [n, <= w] as diagonal blocks [N, T, T] and left blocks [N, T, m].

        Rows past `n` become rows of the identity. Entries left of the matrix meet a
        zero state and never matter.
        """
        missing = self.num_blocks * self.block - self.num_rows
        absent = self.bands - numbers.shape(rows)[1]
        rows = moved(lambda x: tf.pad(x, [[0, 0], [0, absent]]), rows)
        identity = tf.one_hot(tf.zeros([missing], tf.int32), self.bands)
        both = moved(self._both, numbers.appended(rows, identity))
        return (
            moved(lambda x: x[:, :, self.state :], both),
            moved(lambda x: x[:, :, : self.state], both),
        )

    def _both(self, rows: tf.Tensor) -> tf.Tensor:
        """[N, T, m + T] from [N T, w]."""
        rows = tf.reverse(rows, axis=[1])
        rows = tf.reshape(rows, [self.num_blocks, self.block, self.bands])
        # Row a of a block starts a columns further right: pad, and read shifted.
        rows = tf.pad(rows, [[0, 0], [0, 0], [0, self.block]])
        width = self.bands + self.block
        flat = tf.reshape(rows, [self.num_blocks, self.block * width])
        flat = flat[:, : self.block * (width - 1)]
        return tf.reshape(flat, [self.num_blocks, self.block, width - 1])

    def merge(self, diagonal: Numbers, left: Numbers) -> Numbers:
        """The band [n, w] of diagonal and left blocks: the adjoint of `split`."""

        def merged(diagonal: tf.Tensor, left: tf.Tensor) -> tf.Tensor:
            both = tf.concat([left, diagonal], axis=2)
            flat = tf.reshape(both, [self.num_blocks, -1])
            flat = tf.pad(flat, [[0, 0], [0, self.block]])
            width = self.bands + self.block
            rows = tf.reshape(flat, [self.num_blocks, self.block, width])
            rows = tf.reshape(rows[:, :, : self.bands], [-1, self.bands])
            return tf.reverse(rows[: self.num_rows], axis=[1])

        return moved(merged, diagonal, left)

    def split_vector(self, x: Numbers, padding: float) -> Numbers:
        missing = self.num_blocks * self.block - self.num_rows
        x = numbers.appended(x, tf.fill([missing], padding))
        return moved(lambda x: tf.reshape(x, [self.num_blocks, self.block]), x)


@dataclasses.dataclass(frozen=True)
class _Blocks:
    """A banded matrix `M` in blocks, with what the recursions need of it.

    Attributes:
      layout: the cut.
      inverse: `D_t^-1`, [N, T, T].
      transfer: `-D_t^-1 L_t`, [N, T, m]: from the last m steps of the block before.
    """

    layout: _Layout
    inverse: Numbers
    transfer: Numbers

    @classmethod
    def of(cls, layout: _Layout, rows: Numbers) -> _Blocks:
        diagonal, left = layout.split(rows)
        inverse = numbers.triangular_inverse(diagonal)
        return cls(layout, inverse, moved(tf.negative, matmul(inverse, left)))

    @property
    def state_transfer(self) -> Numbers:
        return moved(lambda x: x[:, -self.layout.state :, :], self.transfer)

    @property
    def state_inverse(self) -> Numbers:
        return moved(lambda x: x[:, -self.layout.state :, :], self.inverse)


def _covariance_before(blocks: _Blocks, squared_scale: Numbers | None) -> Numbers:
    """Covariance of the last m steps before each block, [N, m, m]."""
    fresh = _scaled(blocks.state_inverse, squared_scale)
    fresh = matmul(fresh, blocks.state_inverse, transpose_b=True)
    transfer = blocks.state_transfer
    return shifted(affine_scan(transfer, transfer, fresh))


def _scaled(inverse: Numbers, squared_scale: Numbers | None) -> Numbers:
    if squared_scale is None:
        return inverse
    return times(inverse, moved(lambda x: x[:, None, :], squared_scale))


def _adjoint(blocks: _Blocks, weights: Numbers) -> Numbers:
    """`E_t = D_t^-T (Omega_t + R_t)`, [N, T, T], from weights `Omega` [N, T].

    `E_t D_t^-1` are the diagonal blocks of `M^-T Omega M^-1`.
    """
    transfer = blocks.transfer
    by_row = moved(lambda x: x[:, :, None], weights)
    shift = matmul(times(transfer, by_row), transfer, transpose_a=True)
    step = transposed(reverse(blocks.state_transfer))
    later = reverse(shifted(affine_scan(step, step, reverse(shift))))
    tail = matmul(blocks.state_inverse, later, transpose_a=True)
    direct = _scaled(transposed(blocks.inverse), weights)
    ahead = blocks.layout.block - blocks.layout.state
    return plus(direct, moved(lambda x: tf.pad(x, [[0, 0], [0, 0], [ahead, 0]]), tail))


def inverse_row_norms(
    rows: tf.Tensor,
    squared_scale: tf.Tensor | None = None,
    block_size: int | None = None,
    device: str | None = None,
) -> tf.Tensor:
    """`||row i of M^-1 S||^2` for a banded `M`; differentiable with respect to `M`.

    O(n w^2) operations and O(n w) memory for value and gradient.

    Args:
      rows: `M[i, i-j] = rows[i, j]`, shape [n, w], float64, static shape; entries left
        of the matrix are ignored.
      squared_scale: the diagonal of `S^2`, shape [n], or None for ones; a constant to
        differentiation.
      block_size: T >= w - 1, for tests and tuning.
      device: where the recursion runs, in pairs of float32 if that is a TPU; None for
        where TensorFlow puts it.

    Returns:
      Shape [n].
    """
    engine = engine_of(rows.shape[0], rows.shape[1], block_size)
    if device is not None and not has_float64(device):
        return _norms_in_pairs(engine, rows, squared_scale, device)

    @tf.custom_gradient
    def norms(rows: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        with on_device(device):
            variance, kept = engine.variance(rows, squared_scale)

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            with on_device(device):
                return engine.gradient(kept, upstream)

        return variance, gradient

    return norms(rows)


def on_device(device: str | None) -> contextlib.AbstractContextManager[None]:
    """`tf.device`, but nothing for None, for which that forgets the scopes around it."""
    if device is None:
        return contextlib.nullcontext()
    return cast("contextlib.AbstractContextManager[None]", tf.device(device))


def has_float64(device: str) -> bool:
    """Whether the kind of device computes in float64."""
    return str(tf.DeviceSpec.from_string(device).device_type) != "TPU"


# Of the forward pass, what the gradient needs: `D^-1`, `-D^-1 L`, and products of the two
# with the covariance before the block, and with `S^2`.
_Kept = tuple[Numbers, Numbers, Numbers, Numbers]


@dataclasses.dataclass(frozen=True)
class Engine:
    """Row norms of the inverse of a matrix with so many diagonals, and their gradient."""

    layout: _Layout
    bands: int

    def variance(
        self, rows: Numbers, squared_scale: Numbers | None
    ) -> tuple[Numbers, _Kept]:
        """Squared row norms [n], and what the gradient needs."""
        layout = self.layout
        if squared_scale is not None:
            squared_scale = layout.split_vector(squared_scale, 1.0)
        blocks = _Blocks.of(layout, rows)
        before = _covariance_before(blocks, squared_scale)
        inherited = matmul(blocks.transfer, before)
        scaled = _scaled(blocks.inverse, squared_scale)
        variance = plus(
            numbers.sums(times(inherited, blocks.transfer)),
            numbers.sums(times(scaled, blocks.inverse)),
        )
        of_rows = moved(lambda x: tf.reshape(x, [-1])[: layout.num_rows], variance)
        return of_rows, (blocks.inverse, blocks.transfer, inherited, scaled)

    def gradient(self, kept: _Kept, upstream: Numbers) -> Numbers:
        """With respect to the rows [n, bands], from that with respect to the norms."""
        # d tr(Omega B S^2 B^T) = -2 tr(dM Sigma Omega B), in blocks.
        inverse, transfer, inherited, scaled = kept
        weights = self.layout.split_vector(upstream, 0.0)
        adjoint = _adjoint(_Blocks(self.layout, inverse, transfer), weights)
        adjoint = moved(lambda x: -2.0 * x, adjoint)
        covariance = plus(
            matmul(inherited, transfer, transpose_b=True),
            matmul(scaled, inverse, transpose_b=True),
        )
        diagonal = matmul(adjoint, covariance)
        left = matmul(adjoint, inherited)
        band = self.layout.merge(diagonal, left)
        return moved(lambda x: x[:, : self.bands], band)


def engine_of(num_rows: int, bands: int, block_size: int | None = None) -> Engine:
    """What `inverse_row_norms` computes with; see there."""
    return Engine(_Layout.of(num_rows, bands, block_size), bands)


def _norms_in_pairs(
    engine: Engine, rows: tf.Tensor, squared_scale: tf.Tensor | None, device: str
) -> tf.Tensor:
    """As `inverse_row_norms`: two programs; float64 stays on the host."""
    # A TPU has XLA alone, which takes a minute for it on a CPU.
    by_xla = "TPU" in device.upper() or None
    variance_of = tf.function(engine.variance, jit_compile=by_xla, autograph=False)
    gradient_of = tf.function(engine.gradient, jit_compile=by_xla, autograph=False)
    scale = None if squared_scale is None else numbers.as_pair(squared_scale)

    @tf.custom_gradient
    def norms(rows: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        pair = numbers.as_pair(tf.stop_gradient(rows))
        with tf.device(device):
            variance, kept = variance_of(pair, scale)

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            pair = numbers.as_pair(tf.stop_gradient(upstream))
            with tf.device(device):
                found = gradient_of(kept, pair)
            return numbers.as_float64(found)

        return numbers.as_float64(variance), gradient

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
    cross = shifted(affine_scan(c.state_transfer, m.state_transfer, cross))
    # Covariance of this block's input with the last m outputs before it.
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
