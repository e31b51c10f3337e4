"""Norms of float32 gradients that rounding cannot make too small.

With u = 2^-24 and η = 2^-126 (anything smaller may be flushed to zero), a sum of n
float32 products, added in any order, differs from the exact one by at most

    c_n Σ|a_i b_i| + n η,        c_n = n u / (1 - n u)

(N. Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). Each function
here adds its bound to what it measured. Sums over examples, positions and variables are
kept in float64, which neither overflows nor underflows on squares of float32.

A gradient Lᵀ R = Σ_t l_t r_tᵀ whose terms cancel needs more care than its norm: the sum
that is released is computed by one contraction over examples and terms in float32, and
rounding leaves up to c S of it, S = Σ_t |l_t||r_t|, even if the exact gradient is zero.
See `contracted`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from tf_bandmf.keras.compat.graphs import GraphOrParentsInXlaContext, gen_xla_ops
from tf_bandmf.noise.devices import device_kind

_UNIT = 2.0**-24
_TINY = 2.0**-126
_UNIT_64 = 2.0**-53
_SHORT = (tf.bfloat16, tf.float16)

# Floats that are added up in float32; partial sums are added in float64.
BLOCK = 1024
# Longest inner product of a float32 matrix product. A longer one, which is bought with a
# copy of the factor, is added up in pieces of this length.
_LONGEST = 768
_PIECE = 256
# Products of matrices add up blocks of terms in float32 (Eigen, oneDNN, XLA and cuBLAS
# do): the error of a contraction over all examples and terms is taken to be at most that
# of this many terms one after the other. It is an assumption about kernels, not data.
_DEPTH = 64
# The largest ratio of S to the norm that clipping uses: _DEPTH * _UNIT * this < 1e-3.
_MAX_CANCELLATION = 256.0
# Share of a squared norm that the bound on rounding may add before float64 is taken:
# contributions are too small by at most half of it.
_REFINE = 1.4e-3


class Norms(NamedTuple):
    """Squared norms with a bound on what rounding may hide.

    Attributes:
      squared: [B, ...] float64, as measured.
      bounds: [B, ...] float64, not below the squared norm of what is added to the
        sum. NaN or infinity if it cannot be bounded.
    """

    squared: tf.Tensor
    bounds: tf.Tensor

    def summed(self, axis: int) -> Norms:
        """Squared norms of vectors that are put together."""
        return Norms(*(tf.reduce_sum(part, axis) for part in self))

    def of_groups(self) -> Norms:
        """Squared norms [B] from those of one term in each group, [B, 1] or [B, G, 1]."""
        joined = self if self.squared.shape.rank == 2 else self.summed(1)
        return Norms(*(tf.squeeze(part, 1) for part in joined))


def in_xla() -> bool:
    """Whether XLA compiles what is traced now."""
    return GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def accelerator() -> bool:
    """Whether XLA compiles this for a GPU.

    There kernels exchange large tensors through memory, and a few more operations cost
    less than to keep some; on a CPU it is the other way round.
    """
    return in_xla() and device_kind() != "CPU"


def pinned(*tensors: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """The tensors, computed once for all that use them.

    XLA may compute a value again where it is used, and not with the same roundings
    (of bfloat16, for one): the norm has to be that of the numbers that are summed.
    """
    if not in_xla():
        return tensors
    return tuple(gen_xla_ops.xla_optimization_barrier(input=list(tensors)))


def kept(tensor: tf.Tensor) -> tf.Tensor:
    """A tensor as it waits for the norms: float32, or on accelerators 16 bits as they are.

    Whoever computes with 16 bits makes float32 of them first, which is exact: norms and
    sums are those of the same numbers, and the copy does not wait.
    """
    if accelerator() and tensor.dtype in _SHORT:
        return tensor
    return tf.cast(tensor, tf.float32)


def formed(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """Gradients Lᵀ R, float32, of tensors as `kept` gives them.

    Products of 16-bit numbers are exact in float32, so that on accelerators no float32
    copies are made of the operands. Only what is formed may be made so: its norm is that
    of the result, however the sums were rounded. Bounds of what is not formed are about
    float32 products that round to the nearest, which those of 16-bit operands need not.
    """
    if left.dtype == right.dtype and left.dtype in _SHORT:
        return tf.matmul(left, right, transpose_a=True, output_type=tf.float32)
    left, right = tf.cast(left, tf.float32), tf.cast(right, tf.float32)
    return tf.matmul(left, right, transpose_a=True)


def rounding(terms: int | tf.Tensor, unit: float = _UNIT) -> float | tf.Tensor:
    """c_n of the module's docstring, for n terms (float64 if a tensor)."""
    return terms * unit / (1.0 - terms * unit)


def clip_weights(bounds: tf.Tensor, l2_norm_clip: float | tf.Tensor) -> tf.Tensor:
    """Returns what a gradient is multiplied by so that its norm is within the clip norm.

    Args:
      bounds: [B] float64, upper bounds of squared norms.
      l2_norm_clip: the clip norm, one or [B].

    Returns:
      [B] float32, min(1, l2_norm_clip / norm) less a margin of 1e-6 for the roundings
      of the weight and of its products; not defined where the bound is not finite.
    """
    roots = tf.sqrt(bounds)
    ratios = l2_norm_clip / roots * (1.0 - 2.0**-20)
    ratios = tf.where(roots > l2_norm_clip, ratios, tf.ones_like(ratios))
    return tf.cast(ratios, tf.float32)


def automatic_weights(
    bounds: tf.Tensor, l2_norm_clip: float | tf.Tensor, gamma: float | tf.Tensor
) -> tf.Tensor:
    """Returns l2_norm_clip / (norm + gamma): AUTO-S (Bu et al., 2022, arXiv:2206.07136).

    The norm that is weighted stays below the clip norm, as with `clip_weights`.

    Args:
      bounds: [B] float64, upper bounds of squared norms.
      l2_norm_clip: the clip norm.
      gamma: > 0; gradients that are small beside it stay small.

    Returns:
      [B] float32, less a margin of 1e-6; not defined where the bound is not finite.
    """
    ratios = l2_norm_clip / (tf.sqrt(bounds) + gamma) * (1.0 - 2.0**-20)
    return tf.cast(ratios, tf.float32)


def of_last_axis(tensor: tf.Tensor) -> Norms:
    """Norms of vectors.

    Each square and each of at most n = BLOCK additions in float32 rounds once:

        Σx² <= measured (1 + c_{n+2}) + (length) η.

    Args:
      tensor: [..., n] float32, n known.

    Returns:
      Norms [...].
    """
    size = tensor.shape[-1]
    # XLA fuses the conversion into the sum; without it, it is three passes.
    block = None if in_xla() or size is None else _block(size)
    if block is None:
        squared = tf.reduce_sum(tf.square(tf.cast(tensor, tf.float64)), -1)
        length = tf.cast(tf.shape(tensor)[-1], tf.float64)
        return Norms(squared, squared * (1.0 + length * _UNIT_64))
    if block < size:
        leading = tensor.shape[:-1].as_list()
        if leading.count(None) <= 1 and 0 not in leading:
            shape = [-1 if length is None else length for length in leading]
            tensor = tf.reshape(tensor, [*shape, size // block, block])
        else:
            blocks = [size // block, block]
            tensor = tf.reshape(tensor, tf.concat([tf.shape(tensor)[:-1], blocks], 0))
    # One operation without a copy of all squares: a third of the time.
    roots = tf.cast(tf.math.reduce_euclidean_norm(tensor, -1), tf.float64)
    squared = tf.square(roots)
    if block < size:
        squared = tf.reduce_sum(squared, -1)
    # Two more roundings: the square root's counts twice in the square.
    bounds = squared * (1.0 + rounding(block + 4)) + size * _TINY
    return Norms(squared, bounds)


def of_examples(gradients: tf.Tensor) -> Norms:
    """Norms [B] of gradients [B, ...] that are added to the sum as they are."""
    size = gradients.shape[1:].num_elements()
    if size == 0:
        zeros = tf.zeros(tf.shape(gradients)[:1], tf.float64)
        return Norms(zeros, zeros)
    if gradients.shape.rank != 2:
        rows = -1 if size is not None else tf.shape(gradients)[0]
        gradients = tf.reshape(gradients, [rows, -1 if size is None else size])
    return of_last_axis(gradients)


def _block(size: int) -> int | None:
    """The largest divisor of a size that is not too long; None if all are short."""
    if size <= BLOCK:
        return size
    block = next(n for n in range(BLOCK, 0, -1) if size % n == 0)
    return block if block >= 32 else None


def of_outer_products(left: tf.Tensor, right: tf.Tensor) -> Norms:
    """Norms of gradients l rᵀ: |l r'| = |l| |r|.

    Args:
      left: [..., I] float32, or fewer bits where XLA compiles.
      right: [..., O], likewise.

    Returns:
      Norms [...].
    """
    lefts, rights = of_last_axis(left), of_last_axis(right)
    return Norms(lefts.squared * rights.squared, lefts.bounds * rights.bounds)


def contracted(norms: Norms, absolute: tf.Tensor) -> Norms:
    """Norms of gradients that exist only within the sum over examples and terms.

    With S the sum of the norms of an example's terms, the contraction's error is at
    most κ u S times the example's weight, κ = _DEPTH. So κ u S is added to the norm.

    A large S would also be a nuisance to others, whose contributions are rounded to
    the size of the partial sums that they meet: S is limited to 256 times the norm
    that clipping uses, so that these errors are below 1e-3 of the clip norm for each
    example. Sums of T independent terms have S of about sqrt(T) times the norm.

    Args:
      norms: [B], of the exact gradients.
      absolute: S, [B] float64.

    Returns:
      Norms [B] with larger bounds.
    """
    root = tf.sqrt(norms.bounds) + _DEPTH * _UNIT * absolute
    bounds = tf.maximum(tf.square(root), tf.square(absolute / _MAX_CANCELLATION))
    return Norms(norms.squared, _keep_non_finite(bounds, norms.bounds, absolute))


def summed_in_float32(norms: Norms, absolute: tf.Tensor) -> Norms:
    """As `contracted`, of sums over terms that were themselves taken in float32.

    They are wrong by at most κ u S, which is added once more.
    """
    root = tf.sqrt(norms.bounds) + _DEPTH * _UNIT * absolute
    return contracted(Norms(norms.squared, tf.square(root)), absolute)


def of_products(left: tf.Tensor, right: tf.Tensor) -> Norms:
    """Norms of gradients Lᵀ R, which are formed for it; as `of_inner_products`."""
    left, right = tf.cast(left, tf.float32), tf.cast(right, tf.float32)
    products = of_examples(tf.matmul(left, right, transpose_a=True))
    lengths = of_last_axis(left).bounds * of_last_axis(right).bounds
    absolute = tf.reduce_sum(tf.sqrt(lengths), -1)
    if left.shape.rank == 4:
        absolute = tf.sqrt(tf.reduce_sum(tf.square(absolute), 1))
    return summed_in_float32(products, absolute)


def of_equal_rows(values: tf.Tensor, equal: tf.Tensor, negligible: float) -> Norms:
    """Norms of gradients of a table, of which row k gets Σ_{t: id_t = k} v_t.

        |·|² = Σ_st e_st <v_s, v_t>,    e_st = 1 if the ids are equal, or else 0

    In float32 the inner products are wrong by at most c_O |v_s||v_t|, and adding them up
    by c_{T+2} Σ e_st |<v_s, v_t>|, so that c_{O+T+2} Σ e_st |v_s||v_t| is added, or all
    is done in float64, as in `of_inner_products`.

    Args:
      values: [B, T, O] float32.
      equal: [B, T, T] float32.
      negligible: squared norm below which an example is not clipped.

    Returns:
      Norms [B], as `contracted`.
    """
    return _refined(_equal_rows, (values, equal), negligible).norms()


def _equal_rows(values: tf.Tensor, equal: tf.Tensor, dtype: tf.DType) -> _Products:
    unit, tiny = (_UNIT, _TINY) if dtype == tf.float32 else (_UNIT_64, 0.0)
    inner, roundings = _gram(values, dtype)
    terms, width = values.shape[1], values.shape[2]
    products = tf.cast(equal, dtype) * inner
    total = tf.reduce_sum(tf.cast(tf.reduce_sum(products, -1), tf.float64), -1)
    diagonal = tf.cast(tf.linalg.diag_part(inner), tf.float64)
    # 1.01: c_n is not linear in n.
    lengths = tf.sqrt(diagonal * (1.0 + 1.01 * roundings * unit) + width * tiny)
    squares = _weighted(equal, lengths, terms)
    error = 1.01 * (roundings + terms + 2) * unit * squares
    underflow = tf.fill(
        tf.shape(total), tf.constant(terms**2 * width * tiny, tf.float64)
    )
    return _Products(total, error, underflow, tf.sqrt(squares))


def _keep_non_finite(bounds: tf.Tensor, *sources: tf.Tensor) -> tf.Tensor:
    """NaN wherever a source is not finite (a maximum may drop a NaN)."""
    finite = tf.reduce_all(tf.stack([tf.math.is_finite(s) for s in sources]), axis=0)
    return tf.where(finite, bounds, tf.constant(math.nan, tf.float64))


class _Products(NamedTuple):
    """Products of [..., G] groups: float64, summed over groups.

    Attributes:
      squared: [B], the squared norm as measured; may be below zero.
      error: [B], what rounding may have taken from it.
      underflow: [B], what underflow may have taken from it.
      absolute: [B], S, not below the exact one.
    """

    squared: tf.Tensor
    error: tf.Tensor
    underflow: tf.Tensor
    absolute: tf.Tensor

    def norms(self) -> Norms:
        """With the bounds added."""
        zeros = tf.zeros_like(self.squared)
        squared = tf.where(self.squared < 0.0, zeros, self.squared)
        bounds = squared + self.error + self.underflow
        return contracted(Norms(squared, bounds), self.absolute)


def _refined(
    compute: Callable[..., _Products], tensors: Sequence[tf.Tensor], negligible: float
) -> _Products:
    """In float32, or in float64 if rounding would be noticed in a weight.

    Args:
      compute: from tensors [B, ...] and a dtype to products.
      tensors: of which each example's part is enough for its products.
      negligible: squared norm below which an example is not clipped.
    """
    single = compute(*tensors, tf.float32)
    noticed = single.error > _REFINE * tf.maximum(single.squared, negligible)

    return tf.cond(
        tf.reduce_any(noticed), lambda: compute(*tensors, tf.float64), lambda: single
    )


def of_inner_products(left: tf.Tensor, right: tf.Tensor, negligible: float) -> Norms:
    """Norms of gradients Lᵀ R from inner products of their rows.

        |Lᵀ R|² = Σ_st a_st b_st,    a_st = <l_s, l_t>,  b_st = <r_s, r_t>

    In float32 a_st is wrong by at most c_I |l_s||l_t| (b_st by c_O |r_s||r_t|), and
    adding the products for each s by c_{T+2} Σ_t |a_st b_st|, so that the squared norm
    is wrong by at most

        c_I Σ|l_s||l_t||b_st| + c_O Σ|r_s||r_t||a_st| + c_I c_O S² + c_{T+2} Σ|a_st b_st|

    and the last sum is at most the smaller one of the first two. The bound is added.
    If that would be noticed in an example's weight, all is done again in float64: terms
    that cancel lose what is left of a difference, and long sequences have many terms.

    Args:
      left: [B, T, I] or [B, G, T, I], float32 or what it is made of, see `kept`.
      right: [B, T, O] or [B, G, T, O], likewise.
      negligible: squared norm below which an example is not clipped.

    Returns:
      Norms [B], as `contracted`.
    """

    def products(left: tf.Tensor, right: tf.Tensor, dtype: tf.DType) -> _Products:
        return _inner_products(_gram(left, dtype), left.shape[-1], right, dtype)

    return _refined(products, (left, right), negligible).norms()


def of_rows_and_products(
    ids: tf.Tensor,
    values: tf.Tensor,
    left: tf.Tensor,
    right: tf.Tensor,
    negligible: float,
) -> Norms:
    """Norms of gradients of a table that is looked up and multiplied with.

    Row k gets Σ_{s: id_s = k} v_s + Σ_t l_t[k] r_t: that is `of_inner_products` of the
    rows [e_{id_s}; l_t] and [v_s; r_t], e_k the k-th unit vector. Inner products with unit
    vectors are entries: they are exact, and nothing of the size of the table is made.

    Args:
      ids: [B, S] integers; those outside of the table get nothing.
      values: [B, S, O] float32.
      left: [B, T, K] float32, K rows of the table.
      right: [B, T, O] float32.
      negligible: squared norm below which an example is not clipped.

    Returns:
      Norms [B], as `contracted`.
    """
    size = left.shape[-1]

    def gram(ids: tf.Tensor, left: tf.Tensor, dtype: tf.DType) -> tuple[tf.Tensor, int]:
        exists = (ids >= 0) & (ids < size)
        products, roundings = _gram(left, dtype)
        equal = tf.cast(ids[:, :, None] == ids[:, None, :], dtype)
        entries = tf.gather(left, tf.where(exists, ids, 0), axis=2, batch_dims=1)
        entries = tf.where(exists[:, None, :], tf.cast(entries, dtype), 0.0)
        above = tf.concat([equal, tf.linalg.matrix_transpose(entries)], axis=2)
        return tf.concat([above, tf.concat([entries, products], 2)], 1), roundings

    def products(
        ids: tf.Tensor, left: tf.Tensor, joined: tf.Tensor, dtype: tf.DType
    ) -> _Products:
        return _inner_products(gram(ids, left, dtype), size, joined, dtype)

    joined = tf.concat([values, right], axis=1)
    return _refined(products, (ids, left, joined), negligible).norms()


def _inner_products(
    gram: tuple[tf.Tensor, int], width: int, right: tf.Tensor, dtype: tf.DType
) -> _Products:
    single = dtype == tf.float32
    unit, tiny = (_UNIT, _TINY) if single else (_UNIT_64, 0.0)
    lefts, of_left = gram
    rights, of_right = _gram(right, dtype)
    count = right.shape[-2]
    if count is None:
        count = tf.cast(tf.shape(right)[-2], tf.float64)
    height = right.shape[-1]

    gamma = functools.partial(rounding, unit=unit)
    # |l_t|² is the diagonal: sums without cancellation.
    diagonal_left = tf.cast(tf.linalg.diag_part(lefts), tf.float64)
    diagonal_right = tf.cast(tf.linalg.diag_part(rights), tf.float64)
    left_norms = tf.sqrt(diagonal_left * (1.0 + gamma(of_left + 1)) + width * tiny)
    right_norms = tf.sqrt(diagonal_right * (1.0 + gamma(of_right + 1)) + height * tiny)
    absolute = tf.reduce_sum(left_norms * right_norms, -1)
    total = tf.reduce_sum(tf.cast(tf.reduce_sum(lefts * rights, -1), tf.float64), -1)

    with_left = _weighted(lefts, right_norms, count)
    with_right = _weighted(rights, left_norms, count)
    error = (
        gamma(of_left) * with_right
        + gamma(of_right) * with_left
        + gamma(of_left) * gamma(of_right) * tf.square(absolute)
        + gamma(count + 2) * tf.minimum(with_left, with_right)
    )
    # Products that vanish, in either matrix and of their elements.
    underflow = (
        tiny * height * count * tf.reduce_sum(tf.square(left_norms), -1)
        + tiny * width * count * tf.reduce_sum(tf.square(right_norms), -1)
        + tiny * count * count
    )
    underflow = tf.broadcast_to(underflow, tf.shape(total))
    squares = tf.square(absolute)
    if right.shape.rank == 4:
        # Groups are parts of one kernel.
        total, error, underflow, squares = (
            tf.reduce_sum(part, 1) for part in (total, error, underflow, squares)
        )
    return _Products(total, error, underflow, tf.sqrt(squares))


def _gram(rows: tf.Tensor, dtype: tf.DType) -> tuple[tf.Tensor, int]:
    """Inner products of rows [..., T, n], and how many roundings one has gone through."""
    rows = tf.cast(rows, dtype)
    size = rows.shape[-1]
    if size <= _LONGEST or dtype == tf.float64:
        return tf.matmul(rows, rows, transpose_b=True), size
    length = -(-size // -(-size // _PIECE))
    parts = [rows[..., at : at + length] for at in range(0, size, length)]
    total = tf.add_n([tf.matmul(part, part, transpose_b=True) for part in parts])
    return total, length + len(parts)


def _weighted(matrix: tf.Tensor, norms: tf.Tensor, count: int | tf.Tensor) -> tf.Tensor:
    """Returns Σ_st |m_st| n_s n_t, not below the exact sum, in float64."""
    small = tf.cast(norms, matrix.dtype)
    product = tf.cast(tf.linalg.matvec(tf.abs(matrix), small), tf.float64)
    total = tf.reduce_sum((product + count * _TINY) * norms, -1)
    return total * (1.0 + rounding(count + 2))
