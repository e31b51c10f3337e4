"""Norms of float32 gradients that rounding cannot make too small.

The bounds rest on one assumption about numerical kernels, and on one formula. Products of
matrices and sums add up blocks of numbers in float32 (Eigen, oneDNN, XLA and cuBLAS do):
with u = 2^-24, a sum of products is assumed to be wrong by at most

    κ u Σ|a_i b_i|,        κ = 64,

which bounds the error of adding 64 numbers one after the other (N. Higham, Accuracy and
Stability of Numerical Algorithms, section 3.1). Measured errors are 10^4 times smaller.
Sums over positions and variables are kept in float64.

The gradient of an example is a sum of terms, G = Σ_t l_t r_tᵀ, with S = Σ_t |l_t||r_t|. Its
squared norm is measured in float32, from inner products of the terms or from G itself,
and is wrong by at most 4 κ u S²: κ u for each of two inner products and for adding up
their products, and the rest for roundings of S. The sum that is released is one
contraction over examples and terms, which is wrong by at most κ u S times the example's
weight, even if G is zero. So the norm that clipping uses is

    √(measured + 4 κ u S²) + κ u S.

As 4 κ u = 2^-16, S is at most 256 times this norm: the contribution of an example is
wrong by at most 1e-3 of the clip norm. For T independent terms, S is about √T times the
norm, which comes out too large by 0.1% for T = 128, and by 0.8% for T = 1024.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tf_bandmf.keras.compat.graphs import GraphOrParentsInXlaContext, gen_xla_ops
from tf_bandmf.noise.devices import device_kind

# The value of κ u in the formulas of the module's docstring.
ROUNDING = 64 * 2.0**-24
# Numbers below `_TINY` may be flushed to zero; squared lengths may lose `_VANISHING`.
_TINY, _VANISHING = 2.0**-126, 2.0**-86
_SHORT = (tf.bfloat16, tf.float16)
# The most floats that are added up in float32; their partial sums are added in float64.
_BLOCK = 1024


class Norms(NamedTuple):
    """Squared norms, and upper bounds that allow for rounding.

    Attributes:
      squared: [B, ...] float64, as measured.
      bounds: [B, ...] float64, not below the squared norm of the contribution to the
        sum. NaN or infinity if it cannot be bounded.
    """

    squared: tf.Tensor
    bounds: tf.Tensor


def in_xla() -> bool:
    """True if XLA compiles the current trace."""
    return GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def accelerator() -> bool:
    """True if XLA compiles the current trace for a GPU.

    Kernels of a GPU exchange large tensors through memory, and computing a tensor again
    costs less than keeping it; on a CPU, the opposite holds.
    """
    return in_xla() and device_kind() != "CPU"


def pinned(*tensors: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Returns the tensors, computed once for all operations that use them.

    XLA may otherwise compute a value again where it is used, with other roundings (such
    as those of bfloat16). But the norm has to be that of the numbers that are summed.
    """
    if not in_xla():
        return tensors
    return tuple(gen_xla_ops.xla_optimization_barrier(input=list(tensors)))


def kept(tensor: tf.Tensor) -> tf.Tensor:
    """Returns a tensor in the form in which it is kept until the norms are known.

    The tensor becomes float32, except that a 16-bit tensor is kept unchanged on
    accelerators, and converted to float32 before each computation. The conversion is
    exact: norms and sums are computed from the same numbers, and no float32 copy has to
    be kept.
    """
    if accelerator() and tensor.dtype in _SHORT:
        return tensor
    return tf.cast(tensor, tf.float32)


def formed(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """Returns gradients Lᵀ R, float32, from tensors as `kept` returns them.

    Products of 16-bit numbers are exact in float32, so that on accelerators no float32
    copies are made of the operands. This is allowed only for gradients that are formed:
    their norm is computed from the result, so the rounding of the sums does not matter.
    The bounds for gradients that are not formed assume float32 products that round to
    the nearest; products of 16-bit operands need not.
    """
    if left.dtype == right.dtype and left.dtype in _SHORT:
        return tf.matmul(left, right, transpose_a=True, output_type=tf.float32)
    left, right = tf.cast(left, tf.float32), tf.cast(right, tf.float32)
    return tf.matmul(left, right, transpose_a=True)


def clip_weights(
    bounds: tf.Tensor,
    l2_norm_clip: float | tf.Tensor,
    gamma: float | tf.Tensor | None = None,
) -> tf.Tensor:
    """Returns the factors that bring the norms of gradients within the clip norm.

    Args:
      bounds: [B] float64, upper bounds of squared norms.
      l2_norm_clip: the clip norm, a scalar or [B].
      gamma: None; or the gamma > 0 of automatic clipping, AUTO-S (Bu et al., 2022,
        arXiv:2206.07136): gradients that are small compared with gamma stay small.

    Returns:
      [B] float32: min(1, l2_norm_clip / norm), or with gamma l2_norm_clip / (norm + gamma),
      less a margin of 1e-6 for the roundings of the weight and of its products;
      undefined if the bound is not finite.
    """
    norms = tf.sqrt(bounds)
    shifted = norms if gamma is None else norms + gamma
    ratios = l2_norm_clip / shifted * (1.0 - 2.0**-20)
    if gamma is None:
        ratios = tf.where(norms > l2_norm_clip, ratios, tf.ones_like(ratios))
    return tf.cast(ratios, tf.float32)


def of_last_axis(tensor: tf.Tensor) -> Norms:
    """Norms of vectors [..., n], computed from their entries.

    Returns:
      Norms [...].
    """
    size = tensor.shape[-1]
    # XLA fuses the conversion into the sum; without XLA, there are three passes.
    block = None if in_xla() or size is None else _block(size)
    if block is None:
        squared = tf.reduce_sum(tf.square(tf.cast(tensor, tf.float64)), -1)
        return Norms(squared, squared * (1.0 + 2.0**-20))
    if block < size:
        blocks = [size // block, block]
        tensor = tf.reshape(tensor, tf.concat([tf.shape(tensor)[:-1], blocks], 0))
    # One operation, without a copy of all squares, takes a third of the time.
    roots = tf.cast(tf.math.reduce_euclidean_norm(tensor, -1), tf.float64)
    squared = tf.square(roots)
    if block < size:
        squared = tf.reduce_sum(squared, -1)
    return Norms(squared, squared * (1.0 + ROUNDING) + size * _TINY)


def of_examples(gradients: tf.Tensor) -> Norms:
    """Norms [B] of gradients [B, ...] that are added to the sum unchanged."""
    size = gradients.shape[1:].num_elements()
    if gradients.shape.rank != 2:
        rows = -1 if size else tf.shape(gradients)[0]
        gradients = tf.reshape(gradients, [rows, -1 if size is None else size])
    return of_last_axis(gradients)


def _block(size: int) -> int | None:
    """The largest divisor of a size within `_BLOCK`; None if that divisor is below 32."""
    if size <= _BLOCK:
        return size
    block = next(n for n in range(_BLOCK, 0, -1) if size % n == 0)
    return block if block >= 32 else None


def of_outer_products(left: tf.Tensor, right: tf.Tensor) -> Norms:
    """Norms of gradients l rᵀ: |l rᵀ| = |l| |r|, and nothing cancels.

    Args:
      left: [B, 1, I], as `kept` returns it.
      right: [B, 1, O], likewise.

    Returns:
      Norms [B].
    """
    pairs = zip(of_last_axis(left), of_last_axis(right), strict=True)
    return Norms(*((one * other)[:, 0] for one, other in pairs))


def of_sums(measured: tf.Tensor, absolute: tf.Tensor) -> Norms:
    """Norms of sums of terms, by the formula of the module's docstring.

    Args:
      measured: [B] float64, the measured squared norms.
      absolute: [B] float64, S² of each example.
    """
    root = tf.sqrt(measured + (4.0 * ROUNDING * absolute + 2.0**-100))
    bounds = tf.square(root + ROUNDING * tf.sqrt(absolute))
    return Norms(tf.maximum(measured, 0.0), bounds)


def of_terms(left: tf.Tensor, right: tf.Tensor) -> Norms:
    """Norms of gradients Lᵀ R from inner products of their rows.

        |Lᵀ R|² = Σ_st a_st b_st,    a_st = <l_s, l_t>,  b_st = <r_s, r_t>

    Args:
      left: [B, T, I], as `kept` returns it.
      right: [B, T, O], likewise.

    Returns:
      Norms [B].
    """
    return of_gram(gram(left), gram(right))


def gram(rows: tf.Tensor) -> tf.Tensor:
    """Inner products of rows [..., T, n], in float32."""
    rows = tf.cast(rows, tf.float32)
    return tf.matmul(rows, rows, transpose_b=True)


def of_gram(lefts: tf.Tensor, rights: tf.Tensor) -> Norms:
    """The norms of `of_terms`, from inner products [B, T, T]."""
    total = tf.reduce_sum(tf.cast(tf.reduce_sum(lefts * rights, -1), tf.float64), -1)
    # |l_t|² and |r_t|² are the diagonals: sums without cancellation.
    lengths = [
        tf.sqrt(tf.cast(tf.linalg.diag_part(part), tf.float64) + _VANISHING)
        for part in (lefts, rights)
    ]
    squares = tf.square(tf.reduce_sum(lengths[0] * lengths[1], -1))
    return of_sums(total, squares)


def of_products(left: tf.Tensor, right: tf.Tensor) -> Norms:
    """The same norms as `of_terms`, computed by forming the gradients."""
    left, right = tf.cast(left, tf.float32), tf.cast(right, tf.float32)
    measured = of_examples(tf.matmul(left, right, transpose_a=True)).squared
    lengths = of_last_axis(left).bounds * of_last_axis(right).bounds
    squares = tf.square(tf.reduce_sum(tf.sqrt(lengths), -1))
    return of_sums(measured, squares)
