"""Per-example gradients of one variable, in factored form.

The per-example gradients of a kernel, [B, *kernel.shape], are too large to store. For
most layers they are products of two smaller tensors, which a `Factor` stores instead.
From these tensors, a factor computes the squared norm for each example, and the
weighted sum over examples. A bound on rounding errors is added to the norm (see
`norms`), so that each example's contribution to the sum is within the clip norm.

If a layer is called several times, the gradients of a variable from all calls are added
*before* the norm is taken: see `add_factors`.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_bandmf.keras.clipping.factors import norms
from tf_bandmf.keras.clipping.factors.norms import Norms
from tf_bandmf.keras.clipping.tensors import batches

# A gradient of an [I, O] kernel is the sum of T outer products (terms). Computing its
# norm from inner products of the terms costs 2 T^2 (I + O) operations and 2 T^2 floats
# per example. Forming the gradient costs 2 T I O operations and I O floats, but makes
# the sum over examples cheap. In measurements, forming the gradient was always faster
# for variables with at most _MIN_INNER_PRODUCT_SIZE parameters.
_MIN_INNER_PRODUCT_SIZE = 40_000


def prefers_forming(terms: int | None, size: int) -> bool:
    """Returns whether norms are computed faster from whole gradients than from terms.

    A gradient is the sum of T terms, each of which is an outer product.

    Args:
      terms: T, or None if unknown.
      size: number of parameters of the variable.
    """
    return size <= _MIN_INNER_PRODUCT_SIZE or bool(terms and 2 * terms**2 > size)


class Measured(NamedTuple):
    """The norms of a factor, and the tensors for its weighted sum.

    Attributes:
      norms: the norms of the examples' contributions to the weighted sum, `Norms` [B];
        or the vectors from which `norms.all_norms` computes these norms.
      tensors: the tensors [B, ...] from which the sum is computed. `norms.kept` defines
        their dtype.
      weighted_sum: function that returns the weighted sum of the per-example gradients,
        in the variable's shape or flattened. Its arguments are the weights [B, 1], and
        the `tensors` after `cleaned`.
    """

    norms: Norms | tuple[tf.Tensor, ...]
    tensors: tuple[tf.Tensor, ...]
    weighted_sum: Callable[..., Any]


def cleaned(counts: tf.Tensor, tensors: Any) -> Any:
    """Sets nested tensors [B, ...] to zero for the examples where `counts` is False.

    Multiplying by zero would not be enough, since zero times infinity is NaN.
    """

    @functools.cache
    def rows(rank: int) -> tf.Tensor:
        return tf.reshape(counts, [-1] + [1] * (rank - 1))

    # A scalar zero is broadcast to each tensor. If arrays of zeros were used instead,
    # TensorFlow would store them as constants of the graph.
    zero = tf.zeros([])
    return tf.nest.map_structure(
        lambda t: tf.where(rows(t.shape.rank), t, tf.cast(zero, t.dtype)), tensors
    )


class Factor(abc.ABC):
    """Per-example gradients, `[B, *shape]`, of one variable."""

    @abc.abstractmethod
    def instantiate(self) -> tf.Tensor:
        """Returns the gradients themselves, `[B, *shape]` float32."""

    def measure(self) -> Measured:
        """Returns the norms, and the tensors from which sums are computed."""
        rows = norms.pinned(batches.flattened(self.instantiate()))
        return Measured(rows, rows, _summed)

    def add(self, other: Factor) -> Factor | None:
        """Adds the gradients of two factors; returns None if this is not supported."""
        del other
        return None

    def scaled(self, scale: tf.Tensor) -> Factor:
        """Returns the gradients, multiplied by `scale` entry by entry.

        Args:
          scale: float32, in the variable's shape.
        """
        return Instantiated(self.instantiate() * scale)

    def of_units(self, rows: int) -> Factor:
        """Sums the gradients of each privacy unit over its `rows` consecutive examples.

        Args:
          rows: K, the number of examples per unit; [U * K, ...] becomes [U, ...].
        """
        of_rows = batches.split_first(self.instantiate(), -1, rows)
        return Instantiated(tf.reduce_sum(of_rows, axis=1))


def add_factors(factors: Sequence[Factor]) -> Factor:
    """Adds per-example gradients of the same variable.

    Args:
      factors: one or more factors, whose gradients have the same shape.

    Returns:
      A factor that stores the sum of the gradients.
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
class Product(Factor):
    """Gradients that are sums of T outer products: `left[b]ᵀ right[b]` for example b.

    Attributes:
      left: [B, T, I]; or [B, I] if there is one term.
      right: [B, T, O]; or [B, O].
      shape: shape of the kernel.
      order: permutation for `tf.transpose`. If I and O are split into the axes of the
        kernel, the permutation brings these axes into the kernel's order. Empty if the
        axes are already in this order.
      copied: None; or a smaller tensor [B, ...], and a function that makes `left` from
        it without arithmetic, by copying entries. Accelerators store the smaller
        tensor, and make `left` twice: for the norms and for the sum.
    """

    left: tf.Tensor
    right: tf.Tensor
    shape: tuple[int, ...]
    order: tuple[int, ...] = ()
    copied: tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]] | None = None

    def add(self, other: Factor) -> Product | None:
        if not isinstance(other, Product):
            return None
        if (self.shape, self.order) != (other.shape, other.order):
            return None
        both = zip(self._by_term(), other._by_term())
        left, right = (tf.concat(tensors, axis=1) for tensors in both)
        return Product(left, right, self.shape, self.order)

    def of_units(self, rows: int) -> Product:
        """Returns a gradient per unit: the sum of the outer products of its rows."""
        left, right = (join_terms(tensor, rows) for tensor in self._by_term())
        return Product(left, right, self.shape, self.order)

    def instantiate(self) -> tf.Tensor:
        formed = norms.formed(*map(norms.kept, self._by_term()))
        return self._to_kernels(formed, -1)

    def _by_term(self) -> list[tf.Tensor]:
        """Returns `left` [B, T, I] and `right` [B, T, O], where T may be 1."""
        is_one = self.left.shape.rank == 2
        pair = self.left, self.right
        return [tf.expand_dims(t, 1) if is_one else t for t in pair]

    def measure(self) -> Measured:
        terms, size = self.left.shape[1], math.prod(self.shape)
        if self.left.shape.rank == 2:
            # The norm of a single outer product is the product of the norms of its two
            # vectors.
            pair = norms.pinned(norms.kept(self.left), norms.kept(self.right))
            return Measured(pair, pair, self.summed)
        if prefers_forming(terms, size):
            return super().measure()
        source, make = self.left, tf.convert_to_tensor
        if self.copied is not None and norms.accelerator():
            source, make = self.copied
        source, right = norms.pinned(norms.kept(source), norms.kept(self.right))
        left = make(source)
        if terms is not None:
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
        """Returns the sum of `weights[b] left[b]ᵀ right[b]` over all examples b.

        Args:
          weights: [B, 1].
          left: [B, T, I]; or [B, I] if there is one term.
          right: [B, T, O]; or [B, O].
        """
        left, right = tf.cast(left, tf.float32), tf.cast(right, tf.float32)
        if left.shape.rank == 3:
            weights = tf.expand_dims(weights, 2)
        right = _joined(right * weights)
        total = tf.matmul(_joined(left), right, transpose_a=True)
        return self._to_kernels(total) if self.order else total

    def _to_kernels(self, matrices: tf.Tensor, *batch: int) -> tf.Tensor:
        """Reshapes matrices `[*batch, I, O]` to kernels `[*batch, *shape]`."""
        if self.order:
            places = range(len(self.order))
            split = [self.shape[self.order.index(place)] for place in places]
            order = [*range(len(batch)), *(len(batch) + axis for axis in self.order)]
            matrices = tf.transpose(tf.reshape(matrices, [*batch, *split]), order)
        return tf.reshape(matrices, [*batch, *self.shape])


def join_terms(tensor: tf.Tensor, rows: int) -> tf.Tensor:
    """Concatenates the terms of the K examples of each of U privacy units.

    Args:
      tensor: [U * K, T, n] or [U * K, T].
      rows: K, the number of examples per unit.

    Returns:
      [U, K * T, n] or [U, K * T].
    """
    terms = rows * batches.inner_sizes(tensor)[0]
    return tf.reshape(tensor, [-1, terms, *tensor.shape[2:]])


def _joined(terms: tf.Tensor) -> tf.Tensor:
    """Reshapes [B, T, n] to [B * T, n]."""
    return terms if terms.shape.rank == 2 else tf.reshape(terms, [-1, terms.shape[2]])


def _summed(weights: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Returns the sum of rows [B, n] times weights [B, 1]."""
    return tf.squeeze(tf.matmul(rows, weights, transpose_a=True), 1)
