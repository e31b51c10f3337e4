"""Computes the per-example losses of common Keras losses from the whole batch.

Executing a loss on one example at a time takes as many operations as the rest of a
small model. On a GPU, the loop over examples takes forty times as long as the rest of a
large model. The common Keras losses do not need a loop: before reduction, they have one
value per example and position, which depends only on this position of this example. A
fixed list contains the functions of these losses. The functions are accepted only in
built-in loss classes, with the last axis as `axis`, and without `ignore_class`.
"""

from __future__ import annotations

import functools
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.tensors.batches import num_examples
from tf_bandmf.keras.compat.keras_objects import (
    LOGITS,
    MASK,
    CompileLoss,
    LossFunctionWrapper,
    loss_arguments,
    loss_parts,
)

_FUNCTIONS = (
    keras.losses.binary_crossentropy,
    keras.losses.categorical_crossentropy,
    keras.losses.mean_absolute_error,
    keras.losses.mean_squared_error,
    keras.losses.sparse_categorical_crossentropy,
)
# All these reductions leave a single value unchanged.
_REDUCTIONS = ("sum_over_batch_size", "sum", "mean", "none", None)


def row_losses(
    loss: CompileLoss, y: Any, y_pred: Any, sample_weight: Any
) -> tf.Tensor | None:
    """Returns the per-example losses, if they are rows of the unreduced batch loss.

    Args:
      loss: the result of `compiled.compiled_loss`.
      y: targets, nested tensors [B, ...].
      y_pred: predictions, likewise.
      sample_weight: None, or nested tensors [B, ...].

    Returns:
      Losses [B]; or None, if the loss must be executed on one example at a time.

    Raises:
      InvalidArgumentError: if the numbers of targets, weights and predictions differ.
    """
    given = [y, y_pred, *([] if sample_weight is None else [sample_weight])]
    if not all(tf.is_tensor(tensor) for tensor in given):
        return None
    if y.shape.rank is None or y_pred.shape.rank is None or y_pred.shape.rank < 2:
        return None
    if sample_weight is not None and sample_weight.shape.rank != 1:
        return None
    if any(getattr(tensor, MASK, None) is not None for tensor in given):
        return None
    if not loss.built:
        loss.build(y, y_pred)
    (part, *others) = loss_parts(loss)
    if others or part.loss_weights is not None or not has_rows(part.loss):
        return None
    if y.shape.rank not in _ranks_of_targets(part.loss, y_pred.shape.rank):
        return None

    target, prediction = (
        keras.ops.convert_to_tensor(each, dtype=part.loss.dtype) for each in (y, y_pred)
    )
    # Without this check, a single row would be broadcast to all examples.
    logits = getattr(y_pred, LOGITS, None)
    tensors = given if logits is None else [*given, logits]
    size, *others = map(num_examples, tensors)
    message = "Each example must have one target, and one weight if weights are used."
    is_same = functools.reduce(tf.logical_and, [tf.equal(size, n) for n in others])
    with tf.control_dependencies([tf.debugging.Assert(is_same, [message])]):
        rows = part.loss.call(target, prediction)
    rows = _reduced(rows, part.loss.reduction)
    if sample_weight is not None:
        rows *= keras.ops.cast(sample_weight, rows.dtype)
    return keras.ops.cast(rows, loss.dtype)


def _ranks_of_targets(loss: Any, rank: int) -> tuple[int, ...]:
    """Returns the ranks that targets may have for predictions of a given rank."""
    sparse = loss.fn is keras.losses.sparse_categorical_crossentropy
    return (rank - 1, rank) if rank == 2 or sparse else (rank,)


def _reduced(values: tf.Tensor, reduction: str | None) -> tf.Tensor:
    """Reduces losses per position to losses per example, [B], as Keras does."""
    axes = range(1, values.shape.rank)
    if not axes:
        return values
    rows = tf.reduce_sum(values, list(axes))
    if reduction in ("sum_over_batch_size", "mean"):
        count = tf.reduce_prod(tf.shape(values)[1:])
        rows = tf.math.divide_no_nan(rows, tf.cast(count, rows.dtype))
    return rows


def has_rows(loss: Any) -> bool:
    """Returns whether row i of a loss, before reduction, depends only on example i.

    This is known for built-in losses whose function is in `_FUNCTIONS`, with the last
    axis as `axis`, and without `ignore_class`.
    """
    kind = type(loss)
    if kind is not getattr(keras.losses, kind.__name__, LossFunctionWrapper):
        return False
    if getattr(loss, "fn", None) not in _FUNCTIONS or loss.reduction not in _REDUCTIONS:
        return False
    arguments = dict(loss_arguments(loss))
    if arguments.pop("ignore_class", None) is not None:
        return False
    numbers = all(type(value) in (bool, int, float) for value in arguments.values())
    return numbers and arguments.get("axis", -1) == -1
