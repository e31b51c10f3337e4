"""Privacy units of several rows, with one clipped gradient per unit.

A unit is, for example, all augmented views of an example, or all records of a user. The
model is called on rows, and must not mix them, even within a unit. The loss and the
gradient of a unit are means over its rows; the gradient is clipped once per unit.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_bandmf.keras.clipping.tensors import batches


class UnitRows:
    """Marks the present rows in a batch of U units with at most K rows each.

    Args:
      present: [U, K], bool. The gradient of a unit without any row is zero.

    Raises:
      ValueError: if K is not known statically.
    """

    def __init__(self, present: tf.Tensor) -> None:
        if present.shape.rank != 2 or not present.shape[1]:
            raise ValueError(
                f"`rows` must have shape [U, K] (units, rows per unit) with a fixed "
                f"K >= 1, but found shape {present.shape}."
            )
        self.present = tf.cast(present, tf.bool)
        self.rows: int = present.shape[1]

    def flat(self, structure: Any) -> Any:
        """Reshapes tensors [U, K, ...] to rows [U * K, ...]."""

        def flatten(tensor: tf.Tensor) -> tf.Tensor:
            if tensor.shape.rank < 2 or tensor.shape[1] not in (None, self.rows):
                raise ValueError(
                    f"With `rows` of shape [U, {self.rows}], all inputs and targets "
                    f"must have shape [U, {self.rows}, ...], but found {tensor.shape}."
                )
            return batches.join_first(tensor)

        return batches.map_tensors(flatten, structure)

    def unflat(self, structure: Any) -> Any:
        """Reshapes rows [U * K, ...] to tensors [U, K, ...]."""
        return batches.map_tensors(
            lambda tensor: batches.split_first(tensor, -1, self.rows), structure
        )

    def weights(self) -> tf.Tensor:
        """Returns the weight of each row in the loss of its unit, [U * K] float32."""
        present = tf.cast(self.present, tf.float32)
        counts = tf.reduce_sum(present, axis=1, keepdims=True)
        return tf.reshape(tf.math.divide_no_nan(present, counts), [-1])

    def losses(self, losses: tf.Tensor) -> tf.Tensor:
        """Computes the mean loss of each unit, [U], from losses of rows, [U * K]."""
        losses = tf.cast(losses, tf.float32)
        weighted = tf.math.multiply_no_nan(losses, self.weights())
        return tf.reduce_sum(tf.reshape(weighted, [-1, self.rows]), axis=1)


def present_rows(structure: Any, rows: tf.Tensor) -> Any:
    """Returns the N present rows of all units, one after the other.

    Args:
      structure: nested tensors [U, K, ...].
      rows: [U, K] bool, True if a row is present.

    Returns:
      Nested tensors [N, ...].
    """
    return batches.map_tensors(
        lambda tensor: tf.boolean_mask(tensor, tf.cast(rows, tf.bool)), structure
    )
