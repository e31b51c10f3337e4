"""Per-example gradients of one variable, in factored form.

The per-example gradients of a kernel, [B, *kernel.shape], are too large to keep. Most
layers leave them as a product of two smaller tensors. A factor is such a form; it gives
the squared norm per example, and the weighted sum over examples. Both are computed from
the same float32 tensors, and the norm comes with a bound on rounding (see `norms`), so
that the clipped sum obeys it.

Factors of one variable from several calls of its layer add up *before* the norm is
taken: see `add_factors`.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from tf_bandmf.keras.clipping.factors import norms
from tf_bandmf.keras.clipping.factors.norms import Norms
from tf_bandmf.keras.clipping.tensors import batches

# The inner-product form costs 2 T^2 (I + O) operations and 2 T^2 floats per example;
# forming the gradient costs 2 T I O operations and I O floats, but then the sum over
# examples is cheap. Below this number of parameters forming it was always faster.
_MIN_INNER_PRODUCT_SIZE = 40_000


def prefers_forming(terms: int | None, size: int) -> bool:
    """Whether to form gradients of T outer products rather than use inner products.

    Args:
      terms: T, or None if it is not known.
      size: parameters of the variable.
    """
    return size <= _MIN_INNER_PRODUCT_SIZE or bool(terms and 2 * terms**2 > size)


class Measured(NamedTuple):
    """A factor whose norms are known.

    Attributes:
      norms: [B], with bounds that hold for what `weighted_sum` adds up.
      tensors: tensors with leading dimension B that the sum is computed from; float32, or
        on accelerators what float32 is made of, see `norms.kept`.
      weighted_sum: maps weights [B] and (cleaned) tensors to the weighted sum of
        the per-example gradients, in the variable's shape.
    """

    norms: Norms
    tensors: tuple[tf.Tensor, ...]
    weighted_sum: Callable[[tf.Tensor, Sequence[tf.Tensor]], tf.Tensor]


def cleaned(counts: tf.Tensor, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Tensors [B, ...] with zeros for examples that do not count, [B] bool.

    In as few operations as can be: they are made in a branch that hardly ever runs.
    """
    zeros: dict[tf.DType, tf.Tensor] = {}
    masks: dict[int, tf.Tensor] = {}
    for tensor in tensors:
        if tensor.dtype not in zeros:
            zeros[tensor.dtype] = tf.constant(0.0, tensor.dtype)
        if tensor.shape.rank not in masks:
            masks[tensor.shape.rank] = batches.expand_example(counts, tensor)
    return [
        tf.where(masks[tensor.shape.rank], tensor, zeros[tensor.dtype])
        for tensor in tensors
    ]


class Factor(abc.ABC):
    """Per-example gradients, `[B, *shape]`, of one variable."""

    @abc.abstractmethod
    def measure(self) -> Measured:
        """Returns norms and what the weighted sum needs."""

    @abc.abstractmethod
    def instantiate(self) -> tf.Tensor:
        """Returns the gradients themselves, `[B, *shape]` float32."""

    def add(self, other: Factor) -> Factor | None:
        """Returns the factored sum of both, or None if it has no common form."""
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
    """Gradients that are kept as they are.

    Attributes:
      gradients: `[B, *shape]`.
    """

    gradients: tf.Tensor

    def measure(self) -> Measured:
        pinned = norms.pinned(tf.cast(self.gradients, tf.float32))
        return Measured(norms.of_examples(*pinned), pinned, _tensordot)

    def instantiate(self) -> tf.Tensor:
        return tf.cast(self.gradients, tf.float32)


class Formed(Instantiated):
    """Gradients [U, *shape] of units, formed of all their rows at once."""

    def of_units(self, rows: int) -> Factor:
        return self


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a matrix [G, I, O] becomes a kernel: reshape, transpose, reshape.

    Attributes:
      split: the matrix is reshaped to this.
      order: of the axes, in which it is then transposed.
      shape: of the kernel.
    """

    split: tuple[int, ...]
    order: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def plain(cls, shape: Sequence[int]) -> Layout:
        """Layout of a kernel that is a reshaped [1, I, O]."""
        shape = tuple(shape)
        return cls(shape, tuple(range(len(shape))), shape)

    def to_kernel(self, matrix: tf.Tensor) -> tf.Tensor:
        """Maps [G, I, O] (or [I, O]) to the kernel's shape."""
        if self.order == tuple(range(len(self.order))):
            return tf.reshape(matrix, self.shape)
        return tf.reshape(
            tf.transpose(tf.reshape(matrix, self.split), self.order), self.shape
        )

    def to_kernels(self, matrices: tf.Tensor) -> tf.Tensor:
        """Maps [B, G, I, O] (or [B, I, O]) to `[B, *kernel shape]`."""
        matrices = tf.reshape(matrices, (-1, *self.split))
        order = (0, *(axis + 1 for axis in self.order))
        return tf.reshape(tf.transpose(matrices, order), (-1, *self.shape))


@dataclasses.dataclass(frozen=True)
class Product(Factor):
    """Gradients that are sums of T outer products: `left_bᵀ right_b`.

    Attributes:
      left: [B, T, I], or [B, G, T, I] for G independent groups.
      right: [B, T, O], or [B, G, T, O].
      layout: how [G, I, O] becomes the kernel.
      copied: None; or a smaller tensor [B, ...] and the function that makes `left` from
        it, only by copying its numbers. On accelerators, `left` is made once for the
        norms and once more for the sum, and is not kept in between.
    """

    left: tf.Tensor
    right: tf.Tensor
    layout: Layout
    copied: tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]] | None = None

    def add(self, other: Factor) -> Factor | None:
        if (
            not isinstance(other, Product)
            or self.layout != other.layout
            or self.left.shape.rank != other.left.shape.rank
        ):
            return None
        return Product(
            tf.concat([self.left, other.left], axis=-2),
            tf.concat([self.right, other.right], axis=-2),
            self.layout,
        )

    def of_units(self, rows: int) -> Factor:
        """See the base class: the rows' terms are the terms of the unit."""
        left, right = join_terms(self.left, rows), join_terms(self.right, rows)
        return Product(left, right, self.layout)

    def instantiate(self) -> tf.Tensor:
        left, right = tf.cast(self.left, tf.float32), tf.cast(self.right, tf.float32)
        return self.layout.to_kernels(tf.matmul(left, right, transpose_a=True))

    def measure(self) -> Measured:
        left, right = norms.kept(self.left), norms.kept(self.right)
        terms = left.shape[-2]
        size = math.prod(self.layout.shape)
        if terms != 1 and terms is not None and prefers_forming(terms, size):
            (matrices,) = norms.pinned(norms.formed(left, right))
            return Measured(
                norms.of_examples(matrices),
                (matrices,),
                lambda weights, tensors: self.layout.to_kernel(
                    _tensordot(weights, tensors)
                ),
            )
        kept, make = left, None
        if self.copied is not None and norms.accelerator():
            kept, make = norms.kept(self.copied[0]), self.copied[1]
        kept, right = norms.pinned(kept, right)
        left = kept if make is None else make(kept)
        if terms == 1:
            # One outer product in each group: nothing cancels.
            measured = norms.of_outer_products(left, right)
        elif terms is not None:
            measured = norms.of_terms(left, right)
        else:
            dynamic_terms = tf.cast(tf.shape(left)[-2], tf.float32)
            measured = tf.cond(
                2.0 * dynamic_terms**2 <= float(size),
                lambda: norms.of_terms(left, right),
                lambda: norms.of_products(left, right),
            )
        return Measured(
            measured,
            (kept, right),
            functools.partial(self.summed, make),
        )

    def summed(
        self,
        make: Callable[[tf.Tensor], tf.Tensor] | None,
        weights: tf.Tensor,
        tensors: Sequence[tf.Tensor],
    ) -> tf.Tensor:
        """The sum over examples with weights [B]; `make` makes left of the first."""
        left, right = tensors
        left = left if make is None else make(left)
        left, right = tf.cast(left, tf.float32), tf.cast(right, tf.float32)
        shape = [-1] + [1] * (right.shape.rank - 1)
        right = right * tf.reshape(weights, shape)
        if left.shape.rank == 3:
            # One large matrix product over examples and terms together.
            left = tf.reshape(left, [-1, left.shape[-1]])
            right = tf.reshape(right, [-1, right.shape[-1]])
            return self.layout.to_kernel(tf.matmul(left, right, transpose_a=True))
        return self.layout.to_kernel(tf.einsum("bgti,bgto->gio", left, right))


def join_terms(tensor: tf.Tensor, rows: int) -> tf.Tensor:
    """Puts the terms of K rows behind one another.

    Args:
      tensor: [U * K, T, n], or [U * K, G, T, n] with groups, or [U * K, T].
      rows: K.

    Returns:
      [U, K * T, n], [U, G, K * T, n] or [U, K * T].
    """
    axis = 2 if tensor.shape.rank == 4 else 1
    terms = tensor.shape[axis]
    if terms is None:
        terms = tf.shape(tensor)[axis]
    if tensor.shape.rank != 4:
        return tf.reshape(tensor, [-1, rows * terms, *tensor.shape[2:]])
    groups, width = tensor.shape[1], tensor.shape[3]
    # The batch is named: one dimension may be -1, and the terms may be unknown.
    units = tf.shape(tensor)[0] // rows
    split = tf.reshape(tensor, [units, rows, groups, terms, width])
    joined = tf.transpose(split, [0, 2, 1, 3, 4])
    return tf.reshape(joined, [units, groups, rows * terms, width])


def _tensordot(weights: tf.Tensor, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Contracts weights [B] with the only tensor [B, ...]."""
    (gradients,) = tensors
    shape = gradients.shape[1:]
    if not shape.is_fully_defined() or shape.num_elements() == 0:
        return tf.tensordot(weights, gradients, axes=1)
    # The same in four operations instead of forty, each of which costs start-up.
    rows = tf.reshape(gradients, [-1, shape.num_elements()])
    return tf.reshape(tf.linalg.matvec(rows, weights, transpose_a=True), shape)
