"""Per-example gradients of one variable, in factored form.

The per-example gradients of a kernel, [B, *kernel.shape], are too large to keep. Most
layers leave them as a product of two smaller tensors. A factor is such a form, with
two questions to answer: the squared norm per example, and the weighted sum over
examples. Both are computed from the same float32 tensors, so that the clipped sum
obeys the norm that was measured.

Factors of one variable from several calls of its layer add up *before* the norm is
taken: see `add_factors`.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

from tf_bandmf.keras.clipping import batching

# The inner-product form costs 2 T^2 (I + O) operations and 2 T^2 floats per example;
# forming the gradient costs 2 T I O operations and I O floats, but then the sum over
# examples is cheap. Below this number of parameters forming it was always faster.
_MIN_INNER_PRODUCT_SIZE = 40_000


def prefers_forming(terms: int | None, size: int) -> bool:
    """Whether to form gradients of T outer products rather than use inner products.

    Args:
        terms: T, or None if it is not known.
        size: Parameters of the variable.
    """
    return size <= _MIN_INNER_PRODUCT_SIZE or bool(terms and 2 * terms**2 > size)


class Measured(NamedTuple):
    """A factor whose norms are known.

    Attributes:
        squared_norms: [B] float32.
        tensors: Tensors with leading dimension B that the sum is computed from.
        weighted_sum: Maps weights [B] and (cleaned) tensors to the weighted sum of
            the per-example gradients, in the variable's shape.
        parts: If it is P > 1, there are P tensors, each of an equal part of the batch.
    """

    squared_norms: tf.Tensor
    tensors: tuple[tf.Tensor, ...]
    weighted_sum: Callable[[tf.Tensor, Sequence[tf.Tensor]], tf.Tensor]
    parts: int = 1

    def cleaned(self, counts: tf.Tensor) -> list[tf.Tensor]:
        """The tensors with zeros for examples that do not count.

        Args:
            counts: [B], bool.
        """
        if self.parts == 1:
            of_tensors = [counts] * len(self.tensors)
        else:
            of_tensors = tf.split(counts, self.parts)
        return [
            tf.where(batching.expand_example(rows, tensor), tensor, 0.0)
            for rows, tensor in zip(of_tensors, self.tensors)
        ]


class Factor(abc.ABC):
    """Per-example gradients [B, *shape] of one variable."""

    @abc.abstractmethod
    def measure(self) -> Measured:
        """Returns squared norms and what the weighted sum needs."""

    @abc.abstractmethod
    def instantiate(self) -> tf.Tensor:
        """Returns the gradients themselves, [B, *shape] float32."""

    def add(self, other: Factor) -> Factor | None:
        """Returns the factored sum of both, or None if it has no common form."""
        del other
        return None


def add_factors(factors: Sequence[Factor]) -> Factor:
    """Adds per-example gradients of the same variable.

    Args:
        factors: One or more factors of gradients of the same shape.

    Returns:
        The factor of their sum.
    """
    total = factors[0]
    for factor in factors[1:]:
        combined = total.add(factor)
        if combined is None:
            combined = Instantiated(total.instantiate() + factor.instantiate())
        total = combined
    return total


@dataclasses.dataclass(frozen=True)
class Instantiated(Factor):
    """Gradients that are kept as they are.

    Attributes:
        gradients: [B, *shape].
    """

    gradients: tf.Tensor

    def measure(self) -> Measured:
        """See the base class."""
        gradients = tf.cast(self.gradients, tf.float32)
        return Measured(_squared_norms(gradients), (gradients,), _tensordot)

    def instantiate(self) -> tf.Tensor:
        """See the base class."""
        return tf.cast(self.gradients, tf.float32)


@dataclasses.dataclass(frozen=True)
class InParts(Factor):
    """Gradients that were formed for one part of the batch after the other.

    What a part needs on the way is small enough then for the processor's cache.

    Attributes:
        gradients: P tensors [B / P, *shape].
    """

    gradients: tuple[tf.Tensor, ...]

    def measure(self) -> Measured:
        """See the base class."""
        parts = len(self.gradients)
        norms = tf.concat([_squared_norms(part) for part in self.gradients], axis=0)

        def weighted_sum(weights: tf.Tensor, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
            pairs = zip(tf.split(weights, parts), tensors)
            return tf.add_n([_tensordot(rows, (tensor,)) for rows, tensor in pairs])

        return Measured(norms, self.gradients, weighted_sum, parts)

    def instantiate(self) -> tf.Tensor:
        """See the base class."""
        return tf.concat(self.gradients, axis=0)


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a matrix [G, I, O] becomes a kernel: reshape, transpose, reshape."""

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
        """Maps [B, G, I, O] (or [B, I, O]) to [B, *kernel shape]."""
        matrices = tf.reshape(matrices, (-1, *self.split))
        order = (0, *(axis + 1 for axis in self.order))
        return tf.reshape(tf.transpose(matrices, order), (-1, *self.shape))


@dataclasses.dataclass(frozen=True)
class Product(Factor):
    """Gradients that are sums of T outer products: `left_bᵀ right_b`.

    Attributes:
        left: [B, T, I], or [B, G, T, I] for G independent groups.
        right: [B, T, O], or [B, G, T, O].
        layout: How [G, I, O] becomes the kernel.
    """

    left: tf.Tensor
    right: tf.Tensor
    layout: Layout

    def add(self, other: Factor) -> Factor | None:
        """See the base class."""
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

    def instantiate(self) -> tf.Tensor:
        """See the base class."""
        left, right = tf.cast(self.left, tf.float32), tf.cast(self.right, tf.float32)
        return self.layout.to_kernels(tf.matmul(left, right, transpose_a=True))

    def measure(self) -> Measured:
        """See the base class."""
        left, right = tf.cast(self.left, tf.float32), tf.cast(self.right, tf.float32)
        terms = left.shape[-2]
        size = math.prod(self.layout.shape)
        if terms == 1:
            # One outer product: its norm is the product of the norms.
            norms = _sum_of_squares(left, [-1]) * _sum_of_squares(right, [-1])
            squared_norms = tf.reduce_sum(tf.reshape(norms, [tf.shape(left)[0], -1]), 1)
            return Measured(squared_norms, (left, right), self._contract)
        if prefers_forming(terms, size):
            matrices = tf.matmul(left, right, transpose_a=True)
            return Measured(
                _squared_norms(matrices),
                (matrices,),
                lambda weights, tensors: self.layout.to_kernel(
                    _tensordot(weights, tensors)
                ),
            )
        if terms is not None:
            squared_norms = _inner_product_norms(left, right)
        else:
            dynamic_terms = tf.cast(tf.shape(left)[-2], tf.float32)
            squared_norms = tf.cond(
                2.0 * dynamic_terms**2 <= float(size),
                lambda: _inner_product_norms(left, right),
                lambda: _squared_norms(tf.matmul(left, right, transpose_a=True)),
            )
        return Measured(squared_norms, (left, right), self._contract)

    def _contract(self, weights: tf.Tensor, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        left, right = tensors
        shape = [-1] + [1] * (right.shape.rank - 1)
        right = right * tf.reshape(weights, shape)
        if left.shape.rank == 3:
            # One large matrix product over examples and terms together.
            left = tf.reshape(left, [-1, left.shape[-1]])
            right = tf.reshape(right, [-1, right.shape[-1]])
            return self.layout.to_kernel(tf.matmul(left, right, transpose_a=True))
        return self.layout.to_kernel(tf.einsum("bgti,bgto->gio", left, right))


@dataclasses.dataclass(frozen=True)
class Rows(Factor):
    """Gradients of a lookup table: row `ids[b, t]` receives `values[b, t]`.

    Attributes:
        ids: [B, T] integers.
        values: [B, T, O].
        num_rows: Rows of the table.
    """

    ids: tf.Tensor
    values: tf.Tensor
    num_rows: int

    # Above this many terms, sorting ids is cheaper than comparing all pairs.
    _MAX_PAIRED_TERMS = 256

    def add(self, other: Factor) -> Factor | None:
        """See the base class."""
        if not isinstance(other, Rows) or self.num_rows != other.num_rows:
            return None
        return Rows(
            tf.concat([self.ids, tf.cast(other.ids, self.ids.dtype)], axis=1),
            tf.concat([self.values, other.values], axis=1),
            self.num_rows,
        )

    def instantiate(self) -> tf.Tensor:
        """See the base class."""
        values = tf.cast(self.values, tf.float32)
        batch = tf.shape(values)[0]
        offsets = tf.range(batch, dtype=tf.int64)[:, None] * self.num_rows
        ids = tf.cast(self.ids, tf.int64)
        # A negative segment is dropped, as a row that does not exist must be.
        valid = (ids >= 0) & (ids < self.num_rows)
        segments = tf.where(valid, ids + offsets, -1)
        table = tf.math.unsorted_segment_sum(
            values, segments, tf.cast(batch, tf.int64) * self.num_rows
        )
        return tf.reshape(table, [batch, self.num_rows, values.shape[-1]])

    def measure(self) -> Measured:
        """See the base class."""
        values = tf.cast(self.values, tf.float32)
        terms = self.ids.shape[1]
        if terms == 1:
            squared_norms = _squared_norms(values)
        elif terms is not None and terms <= self._MAX_PAIRED_TERMS:
            equal = tf.cast(self.ids[:, :, None] == self.ids[:, None, :], tf.float32)
            inner = tf.matmul(values, values, transpose_b=True)
            squared_norms = tf.maximum(tf.reduce_sum(equal * inner, axis=[1, 2]), 0.0)
        else:
            squared_norms = self._sorted_norms(values)

        def weighted_sum(weights: tf.Tensor, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
            (cleaned,) = tensors
            return tf.math.unsorted_segment_sum(
                tf.reshape(cleaned * weights[:, None, None], [-1, cleaned.shape[-1]]),
                tf.reshape(self.ids, [-1]),
                self.num_rows,
            )

        return Measured(squared_norms, (values,), weighted_sum)

    def _sorted_norms(self, values: tf.Tensor) -> tf.Tensor:
        order = tf.argsort(self.ids, axis=1)
        ids = tf.gather(self.ids, order, batch_dims=1)
        values = tf.gather(values, order, batch_dims=1)
        shape = tf.shape(ids)
        # Equal ids are neighbours now: number the runs within each example.
        starts = tf.cast(ids[:, 1:] != ids[:, :-1], tf.int32)
        runs = tf.pad(tf.cumsum(starts, axis=1), [[1, 0], [0, 0]][::-1])
        runs += tf.range(shape[0])[:, None] * shape[1]
        sums = tf.math.unsorted_segment_sum(
            tf.reshape(values, [-1, values.shape[-1]]),
            tf.reshape(runs, [-1]),
            shape[0] * shape[1],
        )
        return tf.reduce_sum(
            tf.reshape(tf.reduce_sum(sums**2, axis=1), [shape[0], shape[1]]), axis=1
        )


def _squared_norms(gradients: tf.Tensor) -> tf.Tensor:
    """Returns squared norms [B] of gradients [B, ...]."""
    return _sum_of_squares(gradients, list(range(1, gradients.shape.rank)))


def _sum_of_squares(tensor: tf.Tensor, axes: list[int]) -> tf.Tensor:
    if GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        return tf.reduce_sum(tensor**2, axes)  # XLA fuses it, and has no other way
    # One operation without a copy of all squares: a third of the time.
    return tf.square(tf.math.reduce_euclidean_norm(tensor, axes))


def _tensordot(weights: tf.Tensor, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Contracts weights [B] with the only tensor [B, ...]."""
    (gradients,) = tensors
    return tf.tensordot(weights, gradients, axes=1)


def _inner_product_norms(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """Returns squared norms of `leftᵀ right` from inner products of their rows."""
    inner = tf.matmul(left, left, transpose_b=True) * tf.matmul(
        right, right, transpose_b=True
    )
    total = tf.reduce_sum(inner, axis=list(range(1, inner.shape.rank)))
    # Rounding may leave a tiny negative number where terms cancel.
    return tf.maximum(total, 0.0)
