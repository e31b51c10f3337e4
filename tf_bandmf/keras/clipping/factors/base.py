"""Per-example gradients of one variable, in factored form.

The per-example gradients of a kernel, [B, *kernel.shape], are too large to keep. For most
layers they are a product of two smaller tensors. A factor holds them in such a form; it
gives the squared norm per example, and the weighted sum over examples. Both are computed
from the same float32 tensors, and the norm comes with a bound on rounding (see `norms`),
so that each example's contribution to the sum is within the clip norm.

Factors of one variable from several calls of its layer add up *before* the norm is
taken: see `add_factors`.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_bandmf.keras.clipping.factors import norms
from tf_bandmf.keras.clipping.factors.norms import Norms
from tf_bandmf.keras.clipping.tensors import batches

# The inner-product form costs 2 T^2 (I + O) operations and 2 T^2 floats per example;
# forming the gradient costs 2 T I O operations and I O floats, but then the sum over
# examples is cheap. Below this number of parameters, forming the gradient was always
# faster.
_MIN_INNER_PRODUCT_SIZE = 40_000


def prefers_forming(terms: int | None, size: int) -> bool:
    """True if forming gradients of T outer products is faster than inner products.

    Args:
      terms: T, or None if unknown.
      size: number of parameters of the variable.
    """
    return size <= _MIN_INNER_PRODUCT_SIZE or bool(terms and 2 * terms**2 > size)


class Measured(NamedTuple):
    """The norms of a factor, and the tensors for its weighted sum.

    Attributes:
      norms: [B], with bounds that hold for the terms of `weighted_sum`.
      tensors: tensors with leading dimension B that the sum is computed from; float32, or
        on accelerators also 16-bit floats, see `norms.kept`.
      weighted_sum: maps weights [B] and the (cleaned) tensors, one argument each, to the
        weighted sum of the per-example gradients, in the variable's shape.
    """

    norms: Norms
    tensors: tuple[tf.Tensor, ...]
    weighted_sum: Callable[..., Any]


def cleaned(counts: tf.Tensor, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns tensors [B, ...], with zeros for the examples for which `counts` is False.

    Zero times infinity is not zero, so a weight of zero is not enough.
    """
    return [
        tf.where(batches.expand_example(counts, tensor), tensor, zero)
        for tensor in tensors
        for zero in [tf.constant(0.0, tensor.dtype)]
    ]


class Factor(abc.ABC):
    """Per-example gradients, `[B, *shape]`, of one variable."""

    @abc.abstractmethod
    def instantiate(self) -> tf.Tensor:
        """Returns the gradients themselves, `[B, *shape]` float32."""

    def measure(self) -> Measured:
        """Returns norms and the tensors for the weighted sum: here, the gradients."""
        pinned = norms.pinned(self.instantiate())
        return Measured(norms.of_examples(*pinned), pinned, _tensordot)

    def add(self, other: Factor) -> Factor | None:
        """Returns the sum with another factor; None if the two have no common form."""
        del other
        return None

    def scaled(self, scale: tf.Tensor) -> Factor:
        """Returns the gradients with each coordinate multiplied by a number.

        Args:
          scale: float32, in the variable's shape.
        """
        return Instantiated(self.instantiate() * scale)

    def of_units(self, rows: int) -> Factor:
        """Returns the gradients of units, each the sum of its rows' gradients.

        Args:
          rows: K; rows [U * K, ...] become units [U, ...].
        """
        gradients = self.instantiate()
        shape = [-1, rows, *gradients.shape[1:]]
        return Instantiated(tf.reduce_sum(tf.reshape(gradients, shape), axis=1))


def add_factors(factors: Sequence[Factor]) -> Factor:
    """Adds per-example gradients of the same variable.

    Args:
      factors: one or more factors of gradients of the same shape.

    Returns:
      The factor of their sum.
    """
    total = factors[0]
    for factor in factors[1:]:
        combined = total.add(factor) or factor.add(total)
        if combined is None:
            combined = Instantiated(total.instantiate() + factor.instantiate())
        total = combined
    return total


@dataclasses.dataclass(frozen=True)
class Instantiated(Factor):
    """Gradients that are stored directly, without factors.

    Attributes:
      gradients: `[B, *shape]`.
    """

    gradients: tf.Tensor

    def instantiate(self) -> tf.Tensor:
        return tf.cast(self.gradients, tf.float32)


@dataclasses.dataclass(frozen=True)
class Layout:
    """The conversion of a matrix [I, O] to a kernel: reshape, transpose, reshape.

    Attributes:
      split: the shape that the matrix is reshaped to.
      order: the order of axes to which it is then transposed.
      shape: the shape of the kernel.
    """

    split: tuple[int, ...]
    order: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def plain(cls, shape: Sequence[int]) -> Layout:
        """Returns the layout of a kernel that is a reshaped [I, O]."""
        shape = tuple(shape)
        return cls(shape, tuple(range(len(shape))), shape)

    def to_kernels(
        self, matrices: tf.Tensor, batch: Sequence[int] = (-1,)
    ) -> tf.Tensor:
        """Maps `[*batch, I, O]` to `[*batch, *kernel shape]`."""
        axes = len(batch)
        if self.order != tuple(range(len(self.order))):
            order = [*range(axes), *(axes + axis for axis in self.order)]
            matrices = tf.transpose(tf.reshape(matrices, [*batch, *self.split]), order)
        return tf.reshape(matrices, [*batch, *self.shape])


@dataclasses.dataclass(frozen=True)
class Product(Factor):
    """Gradients that are sums of T outer products: `left_bᵀ right_b`.

    Attributes:
      left: [B, T, I].
      right: [B, T, O].
      layout: the conversion of [I, O] to the kernel.
      copied: None; or a smaller tensor [B, ...] and the function that makes `left` from
        it, only by copying its numbers. On accelerators, `left` is made once for the
        norms and once more for the sum, and is not kept in between.
    """

    left: tf.Tensor
    right: tf.Tensor
    layout: Layout
    copied: tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]] | None = None

    def add(self, other: Factor) -> Product | None:
        if not isinstance(other, Product) or self.layout != other.layout:
            return None
        left = tf.concat([self.left, other.left], axis=1)
        right = tf.concat([self.right, other.right], axis=1)
        return Product(left, right, self.layout)

    def of_units(self, rows: int) -> Product:
        """See the base class: the terms of a unit are those of all its rows."""
        left, right = join_terms(self.left, rows), join_terms(self.right, rows)
        return Product(left, right, self.layout)

    def instantiate(self) -> tf.Tensor:
        left, right = norms.kept(self.left), norms.kept(self.right)
        return self.layout.to_kernels(norms.formed(left, right))

    def measure(self) -> Measured:
        terms, size = self.left.shape[1], math.prod(self.layout.shape)
        if terms != 1 and terms is not None and prefers_forming(terms, size):
            return super().measure()
        source, make = self.copied or (self.left, _unchanged)
        if not norms.accelerator():
            source, make = self.left, _unchanged
        source, right = norms.pinned(norms.kept(source), norms.kept(self.right))
        left = make(source)
        if terms == 1:
            # There is only one outer product, so nothing cancels.
            measured = norms.of_outer_products(left, right)
        elif terms is not None:
            measured = norms.of_terms(left, right)
        else:
            dynamic_terms = tf.cast(tf.shape(left)[1], tf.float32)
            measured = tf.cond(
                2.0 * dynamic_terms**2 <= float(size),
                lambda: norms.of_terms(left, right),
                lambda: norms.of_products(left, right),
            )
        return Measured(
            measured,
            (source, right),
            lambda weights, source, right: self.summed(weights, make(source), right),
        )

    def summed(
        self, weights: tf.Tensor, left: tf.Tensor, right: tf.Tensor
    ) -> tf.Tensor:
        """Returns the sum over examples, with weights [B], from left and right sides."""
        left, right = tf.cast(left, tf.float32), tf.cast(right, tf.float32)
        right = right * batches.expand_example(weights, right)
        # This is one large matrix product over examples and terms.
        left = tf.reshape(left, [-1, left.shape[-1]])
        right = tf.reshape(right, [-1, right.shape[-1]])
        total = tf.matmul(left, right, transpose_a=True)
        return self.layout.to_kernels(total, batch=())


def _unchanged(tensor: tf.Tensor) -> tf.Tensor:
    return tensor


def join_terms(tensor: tf.Tensor, rows: int) -> tf.Tensor:
    """Concatenates the terms of the K rows of each unit.

    Args:
      tensor: [U * K, T, n] or [U * K, T].
      rows: K.

    Returns:
      [U, K * T, n] or [U, K * T].
    """
    terms = tensor.shape[1]
    if terms is None:
        terms = tf.shape(tensor)[1]
    return tf.reshape(tensor, [-1, rows * terms, *tensor.shape[2:]])


def _tensordot(weights: tf.Tensor, gradients: tf.Tensor) -> tf.Tensor:
    """Contracts weights [B] with gradients [B, ...]."""
    shape = gradients.shape[1:]
    if not shape.is_fully_defined() or shape.num_elements() == 0:
        return tf.tensordot(weights, gradients, axes=1)
    # This takes four operations, where `tf.tensordot` takes forty; each costs start-up
    # time.
    rows = tf.reshape(gradients, [-1, shape.num_elements()])
    return tf.reshape(tf.linalg.matvec(rows, weights, transpose_a=True), shape)
