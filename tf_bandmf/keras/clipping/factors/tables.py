"""Per-example gradients of lookup tables."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tf_bandmf.keras.clipping.factors import norms
from tf_bandmf.keras.clipping.factors.base import (
    Factor,
    Measured,
    Product,
    join_terms,
    prefers_forming,
)
from tf_bandmf.keras.clipping.factors.norms import Norms
from tf_bandmf.keras.clipping.tensors.batches import flattened


@dataclasses.dataclass(frozen=True)
class Rows(Factor):
    """Gradients of a lookup table: row `ids[b, t]` receives `values[b, t]`.

    Attributes:
      ids: [B, T] integers below `num_rows`; negative where no row is looked up.
      values: [B, T, O].
      num_rows: number of rows of the table.
      product: None; or the gradients of a projection with the same table, which are
        added to those of the lookups: left [B, T, num_rows], right [B, T, O].
    """

    ids: tf.Tensor
    values: tf.Tensor
    num_rows: int
    product: Product | None = None

    def add(self, other: Factor) -> Factor | None:
        if isinstance(other, Product):
            if other.order:
                return None
            product = other if self.product is None else self.product.add(other)
            return product and dataclasses.replace(self, product=product)
        if not isinstance(other, Rows):
            return None
        total = dataclasses.replace(
            self,
            ids=tf.concat([self.ids, tf.cast(other.ids, self.ids.dtype)], axis=1),
            values=tf.concat([self.values, other.values], axis=1),
        )
        return total if other.product is None else total.add(other.product)

    def of_units(self, rows: int) -> Factor:
        return dataclasses.replace(
            self,
            ids=join_terms(self.ids, rows),
            values=join_terms(self.values, rows),
            product=self.product and self.product.of_units(rows),
        )

    def instantiate(self) -> tf.Tensor:
        # For negative ids, `tf.one_hot` is 0.
        lookups = tf.one_hot(self.ids, self.num_rows)
        table = norms.formed(lookups, tf.cast(self.values, tf.float32))
        return table if self.product is None else table + self.product.instantiate()

    def scaled(self, scale: tf.Tensor) -> Factor:
        """Multiplies each value by the scales of its row of the table."""
        if self.product is not None:
            return super().scaled(scale)
        scales = tf.gather(scale, tf.maximum(self.ids, 0))
        scaled = tf.cast(self.values, tf.float32) * scales
        return dataclasses.replace(self, values=scaled)

    def measure(self) -> Measured:
        if self.product is not None:
            return self._measured_with(self.product)
        (values,) = norms.pinned(tf.cast(self.values, tf.float32))
        if self.ids.shape[1] == 1:
            measured = norms.of_last_axis(flattened(values))
        else:
            measured = self._norms(values)
        return Measured(measured, (values,), self.summed)

    def summed(self, weights: tf.Tensor, values: tf.Tensor) -> tf.IndexedSlices:
        """Returns the weighted sum of `values`; its indices may contain duplicates."""
        shape = [self.num_rows, values.shape[-1]]
        values = tf.reshape(values * tf.expand_dims(weights, 2), [-1, shape[1]])
        ids = tf.cast(tf.reshape(self.ids, [-1]), tf.int64)
        return tf.IndexedSlices(values, ids, tf.constant(shape, tf.int64))

    def _norms(self, values: tf.Tensor) -> Norms:
        """Adds the values with the same id, and computes the norms from these sums."""
        order = tf.argsort(self.ids, axis=1)
        ids = tf.gather(self.ids, order, batch_dims=1)
        values = tf.gather(values, order, batch_dims=1)
        shape = tf.shape(ids)
        # Equal ids are adjacent now; number the runs of equal ids within each example.
        starts = tf.cast(ids[:, 1:] != ids[:, :-1], tf.int32)
        runs = tf.pad(tf.cumsum(starts, axis=1), [[0, 0], [1, 0]])
        runs += tf.range(shape[0])[:, None] * shape[1]
        runs = tf.reshape(runs, [-1])
        count = shape[0] * shape[1]

        def by_run(parts: tf.Tensor) -> tf.Tensor:
            flat = tf.reshape(parts, [count, *parts.shape[2:]])
            sums = tf.math.unsorted_segment_sum(flat, runs, count)
            return tf.reshape(sums, [shape[0], shape[1], *parts.shape[2:]])

        lengths = by_run(tf.sqrt(norms.of_last_axis(values).bounds))
        squared = norms.of_last_axis(by_run(values)).squared
        return norms.of_sums(
            tf.reduce_sum(squared, 1), tf.reduce_sum(tf.square(lengths), 1)
        )

    def _measured_with(self, product: Product) -> Measured:
        ids, lookups, terms = self.ids, self.ids.shape[1], product.left.shape[1]
        total = None if lookups is None or terms is None else lookups + terms
        size = self.num_rows * int(self.values.shape[-1])
        if prefers_forming(total, size):
            return super().measure()
        stored = self.values, product.left, product.right
        values, left, right = norms.pinned(*(tf.cast(t, tf.float32) for t in stored))
        # The gradient of a lookup is the outer product of a unit vector, which selects
        # the row of the table, and a row of `values`. An inner product with a unit
        # vector is a single entry, so the unit vectors, which are as long as the table,
        # are never materialized.
        equal = tf.cast(ids[:, :, None] == ids[:, None, :], tf.float32)
        entries = tf.gather(left, tf.maximum(ids, 0), axis=2, batch_dims=1)
        entries = tf.where(ids[:, None, :] >= 0, entries, 0.0)
        above = tf.concat([equal, tf.linalg.matrix_transpose(entries)], axis=2)
        lefts = tf.concat([above, tf.concat([entries, norms.gram(left)], 2)], axis=1)
        measured = norms.of_gram(lefts, norms.gram(tf.concat([values, right], axis=1)))
        return Measured(
            measured,
            (values, left, right),
            lambda weights, values, left, right: (
                product.summed(weights, left, right)
                + tf.convert_to_tensor(self.summed(weights, values))
            ),
        )
