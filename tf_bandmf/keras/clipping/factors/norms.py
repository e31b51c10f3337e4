"""Norms of float32 gradients, with upper bounds that allow for rounding errors.

The bounds rest on one assumption and one formula. Eigen, oneDNN, XLA and cuBLAS compute
matrix products and sums in float32, block by block. With u = 2^-24, the error of a sum
of products is assumed to be at most

    κ u Σ|a_i b_i|,        κ = 64,

which bounds the error of adding 64 numbers one after the other (N. Higham, Accuracy and
Stability of Numerical Algorithms, section 3.1). Measured errors are 10^4 times smaller
than this bound. Sums over positions and variables are in float64.

The gradient of an example is a sum of terms, G = Σ_t l_t r_tᵀ, with S = Σ_t |l_t||r_t|.
Its squared norm is measured in float32, from inner products of the terms or from G
itself. The error of the measured value is at most 4 κ u S²: κ u S² for each of two
inner products, κ u S² for adding their products, and the rest for rounding S. The
released sum is computed in one operation over examples and terms. Each example adds an
error of at most κ u S times the weight of the example, even if G is zero. So the norm
that clipping uses is

    √(measured + 4 κ u S²) + κ u S.

As 4 κ u = 2^-16, S is at most 256 times this norm, so the error of a contribution is at
most 1e-3 of the clip norm. For T independent terms, S is about √T times the true norm,
and the norm that clipping uses is 0.1% too large for T = 128, and 0.8% for T = 1024.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tf_bandmf.keras.clipping.tensors import batches
from tf_bandmf.keras.compat.graphs import gen_xla_ops
from tf_bandmf.noise.devices import device_kind, traced_under_xla

# The product κ u of the module docstring.
ROUNDING = 64 * 2.0**-24
# Numbers below `_TINY` may be flushed to zero, so squared norms may be too small by up
# to `_VANISHING`.
_TINY, _VANISHING = 2.0**-126, 2.0**-86
_SHORT = (tf.bfloat16, tf.float16)
# At most this many numbers are added in float32. The sums are then added in float64.
_BLOCK = 1024


class Norms(NamedTuple):
    """Squared norms, and upper bounds that allow for rounding errors.

    Attributes:
      squared: [B, ...] float64, the measured squared norms.
      bounds: [B, ...] float64, upper bounds on the squared norm of an example's
        contribution to the sum at weight 1. NaN or infinity if there is no bound.
    """

    squared: tf.Tensor
    bounds: tf.Tensor


def accelerator() -> bool:
    """Returns whether XLA compiles the current trace for an accelerator such as a GPU.

    GPU kernels exchange large tensors through memory, so recomputing a tensor costs
    less than storing it; on a CPU, the opposite holds.
    """
    return traced_under_xla() and device_kind() != "CPU"


def pinned(*tensors: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Returns tensors that XLA computes only once, even if they are used several times.

    Otherwise, XLA may recompute a value at each use, with different rounding (to
    bfloat16, for example). But the norms must be computed from exactly the numbers that
    are summed.
    """
    if not traced_under_xla():
        return tensors
    return tuple(gen_xla_ops.xla_optimization_barrier(input=list(tensors)))


def kept(tensor: tf.Tensor) -> tf.Tensor:
    """Converts a tensor to the dtype in which it is stored until the norms are known.

    This dtype is float32, except for 16-bit tensors on accelerators. These are stored
    unchanged, and converted to float32 before each computation. This conversion is
    exact, so norms and sums are computed from the same numbers without a float32 copy
    in memory.
    """
    if accelerator() and tensor.dtype in _SHORT:
        return tensor
    return tf.cast(tensor, tf.float32)


def formed(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """Returns float32 gradients `leftᵀ right`; the arguments may be 16-bit floats.

    Products of 16-bit numbers are exact in float32, so accelerators multiply 16-bit
    operands without float32 copies. The sums of these products may be rounded in other
    ways than the bounds of `of_sums` assume. Therefore the norms of the gradients must
    be computed from the result of this function.
    """
    if left.dtype == right.dtype and left.dtype in _SHORT:
        return tf.matmul(left, right, transpose_a=True, output_type=tf.float32)
    left, right = tf.cast(left, tf.float32), tf.cast(right, tf.float32)
    return tf.matmul(left, right, transpose_a=True)


def of_last_axis(tensor: tf.Tensor) -> Norms:
    """Computes the norms of vectors [..., n] from their entries.

    Returns:
      Norms [...].
    """
    size, block = tensor.shape[-1], _block(tensor)
    # XLA fuses conversion, square and sum. Without XLA, each of these three operations
    # reads all entries, so they are used only if there is no suitable block size.
    if not block:
        squared = tf.reduce_sum(tf.square(tf.cast(tensor, tf.float64)), -1)
        return Norms(squared, squared * (1.0 + 2.0**-20))
    if block < size:
        inner = batches.inner_sizes(tensor)[:-1]
        tensor = batches.reshape_examples(tensor, *inner, size // block, block)
    # This single operation is three times as fast as `tf.square` and `tf.reduce_sum`.
    roots = tf.cast(tf.math.reduce_euclidean_norm(tensor, -1), tf.float64)
    squared = tf.square(roots)
    if block < size:
        squared = tf.reduce_sum(squared, -1)
    return Norms(squared, squared * (1.0 + ROUNDING) + size * _TINY)


def _block(tensor: tf.Tensor) -> int:
    """Returns the size of the blocks into which a tensor's last axis is split.

    The squares of a block are added in float32, and the sums of the blocks in float64.
    The size is the largest divisor of the axis's length up to `_BLOCK`. It is 0 if
    converting all entries to float64 is faster.
    """
    size = tensor.shape[-1]
    if traced_under_xla() or not size:
        return 0
    block = next(n for n in range(min(size, _BLOCK), 0, -1) if size % n == 0)
    return block if block >= min(size, 32) else 0


def all_norms(gradients: Sequence[Norms | tuple[tf.Tensor, ...]]) -> list[Norms]:
    """Computes the norms of the gradients of several variables.

    The norms of vectors are computed together, since fewer operations take less time to
    trace and to start.

    Args:
      gradients: for each variable, its `Norms`; or a pair of vectors l [B, I] and
        r [B, O], if the gradient is l rᵀ, with norm |l| |r|; or a tuple that contains
        only the gradients themselves, [B, n].

    Returns:
      `Norms` [B] for each variable.
    """
    vectors = [v for each in gradients if not isinstance(each, Norms) for v in each]
    together = [vector for vector in vectors if _block(vector) == vector.shape[-1]]
    norms: dict[int, Norms] = {}
    if together:
        roots = [tf.math.reduce_euclidean_norm(vector, -1) for vector in together]
        squared = tf.square(tf.cast(tf.stack(roots), tf.float64))
        lost = tf.constant([[v.shape[-1] * _TINY] for v in together], tf.float64)
        bounds = squared * (1.0 + ROUNDING) + lost
        pairs = map(Norms, tf.unstack(squared), tf.unstack(bounds))
        norms = dict(zip(map(id, together), pairs))

    def of_product(vectors: Sequence[tf.Tensor]) -> Norms:
        each = [norms.get(id(vector)) or of_last_axis(vector) for vector in vectors]
        return Norms(*(functools.reduce(operator.mul, parts) for parts in zip(*each)))

    return [g if isinstance(g, Norms) else of_product(g) for g in gradients]


def of_sums(measured: tf.Tensor, absolute: tf.Tensor) -> Norms:
    """Bounds the norms of sums of terms by the formula in the module's docstring.

    Args:
      measured: [B] float64, the measured squared norms.
      absolute: [B] float64, the square of S in this formula.
    """
    root = tf.sqrt(measured + (4.0 * ROUNDING * absolute + 2.0**-100))
    bounds = tf.square(root + ROUNDING * tf.sqrt(absolute))
    return Norms(tf.maximum(measured, 0.0), bounds)


def of_terms(left: tf.Tensor, right: tf.Tensor) -> Norms:
    """Computes the norms of the gradients `leftᵀ right` from inner products of rows.

        |leftᵀ right|² = Σ_st <left_s, left_t> <right_s, right_t>

    Args:
      left: [B, T, I], as `kept` returns it.
      right: [B, T, O], as `kept` returns it.

    Returns:
      Norms [B].
    """
    return of_gram(gram(left), gram(right))


def gram(rows: tf.Tensor) -> tf.Tensor:
    """Computes the inner products of rows [..., T, n] in float32."""
    rows = tf.cast(rows, tf.float32)
    return tf.matmul(rows, rows, transpose_b=True)


def of_gram(lefts: tf.Tensor, rights: tf.Tensor) -> Norms:
    """Computes the norms of gradients Lᵀ R from inner products of the rows of L and R.

    Args:
      lefts: [B, T, T], the inner products of the rows of the matrices L.
      rights: [B, T, T], the inner products of the rows of the matrices R.

    Returns:
      Norms [B].
    """
    total = tf.reduce_sum(tf.cast(tf.reduce_sum(lefts * rights, -1), tf.float64), -1)
    # The diagonals of `lefts` and `rights` are sums of squares, so nothing cancels, and
    # their relative rounding errors are small.
    lengths = [
        tf.sqrt(tf.cast(tf.raw_ops.MatrixDiagPart(input=part), tf.float64) + _VANISHING)
        for part in (lefts, rights)
    ]
    squares = tf.square(tf.reduce_sum(lengths[0] * lengths[1], -1))
    return of_sums(total, squares)


def of_products(left: tf.Tensor, right: tf.Tensor) -> Norms:
    """Computes the norms of the gradients `leftᵀ right` from all of their entries."""
    left, right = tf.cast(left, tf.float32), tf.cast(right, tf.float32)
    formed = batches.flattened(tf.matmul(left, right, transpose_a=True))
    measured = of_last_axis(formed).squared
    lengths = of_last_axis(left).bounds * of_last_axis(right).bounds
    squares = tf.square(tf.reduce_sum(tf.sqrt(lengths), -1))
    return of_sums(measured, squares)
