"""Finds losses that are meaningful only for a batch, and refuses them or warns.

Private training computes the loss of each example separately. A loss that compares
examples (Cox's partial likelihood, a covariance, in-batch negatives) has no gradient
for a single example, so the model would train on noise. A loss made of sums over the
batch (Dice, R², hard-example mining) has a gradient for a single example, but it is
the gradient of a different loss. Both kinds are found by comparing the gradient of a
batch's loss with the gradients of the losses of single examples. The check makes up
outputs and targets in the model's shapes and dtypes.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_bandmf.keras.clipping.losses.compiled import compiled_loss
from tf_bandmf.keras.clipping.losses.rows import has_rows
from tf_bandmf.keras.clipping.tensors import batches
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.clipping.tensors.made_up import made_up
from tf_bandmf.keras.compat.keras_objects import (
    CompileLoss,
    compile_loss,
    loss_parts,
)
from tf_bandmf.keras.compat.recurrent import run_model
from tf_bandmf.keras.compat.replicas import unscaled_losses

_EXAMPLES = 5
# Gradients of single examples count as zero if their norm is at most _ROUNDING times
# the norm of the batch gradient. They count as the terms of the batch gradient if their
# angle to the batch gradient is at most _TOLERANCE, and the ratio of the norms is in
# the range that `_cosine` accepts, with a relative tolerance of _TOLERANCE.
_ROUNDING, _TOLERANCE = 1e-3, 1e-2
_WAY_OUT = (
    "Use a loss that needs only one example, or put the records that the loss compares "
    "into one example (a pair, a row with its negatives, all rows of a user)."
)


def check_loss(model: keras.Model, x: Any, y: Any, sample_weight: Any) -> None:
    """Checks that a compiled loss can be computed for each example separately.

    Warns if the gradient of a batch's loss is neither the sum nor the mean of the
    gradients of its examples' losses.

    Args:
      model: a built and compiled model.
      x: inputs, nested arrays or tensors [B, ...]; only their shapes and dtypes matter.
      y: targets, likewise.
      sample_weight: None, or likewise.

    Raises:
      UnsupportedModelError: if the loss has no useful gradient for a single example.
    """
    parts = loss_parts(compile_loss(model))
    if not parts or not all(has_rows(part.loss) for part in parts):
        y_pred = run_model(model, made_up(x, _EXAMPLES), training=False)
        compare(model, y, y_pred, sample_weight)


def compare(model: keras.Model, y: Any, y_pred: Any, sample_weight: Any) -> None:
    """Compares the gradient of a batch's loss with the gradients of single examples.

    Warns if the gradient of the batch's loss is neither the sum nor the mean of the
    gradients of single examples.

    Args:
      model: a compiled model.
      y: targets, nested tensors [B, ...]; only their shapes and dtypes matter.
      y_pred: predictions, likewise.
      sample_weight: None, or likewise.

    Raises:
      UnsupportedModelError: if a batch of made-up examples has gradients, but the
        gradients of single examples are zero, not finite, or cannot be computed.
    """
    loss = compiled_loss(model)
    made = _made_up(y, y_pred, sample_weight)
    try:
        together = _gradients(loss, made)
    except Exception:
        return  # The training step will also fail, and its error gives the reason.
    names = ", ".join(repr(part.loss.name) for part in loss_parts(loss))
    cosines = [0.0]
    with contextlib.suppress(Exception):
        each = [_gradients(loss, one) for one in batches.single_examples(made)]
        alone = [np.concatenate(parts) for parts in zip(*each, strict=True)]
        cosines = [_cosine(*pair) for pair in zip(together, alone, strict=True)]
    if 0.0 in cosines:
        raise UnsupportedModelError(
            f"Model {model.name!r} would learn nothing from the loss {names}. Private "
            f"training computes the loss of each example alone, but this loss compares "
            f"the examples of a batch: for a single example with made-up outputs, the loss "
            f"fails or has a zero gradient. {_WAY_OUT}"
        )
    if min(cosines) < 1.0:
        warnings.warn(
            f"The loss {names} of model {model.name!r} combines the examples of a "
            f"batch: on made-up outputs, its gradient is not the mean over single "
            f"examples (cosine {min(cosines):.2f}). Private training computes the loss of "
            f"each example separately and trains on the mean, which is another loss. "
            f"{_WAY_OUT} `keras.losses.Dice` and `Tversky` are losses of single examples "
            f"if their `axis=` leaves out the batch axis.",
            stacklevel=2,
        )


def _cosine(together: Any, alone: Any) -> float:
    """Returns the cosine of the angle between two gradients with respect to an output.

    Args:
      together: the gradient of the batch's loss with respect to one of the model's
        outputs, [B, ...].
      alone: the gradients of the single examples' losses with respect to the same
        output, concatenated along the batch axis, [B, ...].

    Returns:
      1 if `together` is `alone` times a factor from 1 / B (a mean) to 1 (a sum), up to
      _TOLERANCE; or if nothing can be compared, because `together` is zero or not
      finite. 0 if `alone` is zero up to rounding; its entries that are not finite count
      as 0. Otherwise the cosine, but at most 1 - _ROUNDING.
    """
    alone = np.where(np.isfinite(alone), alone, 0)
    length, size = np.linalg.norm(together), np.linalg.norm(alone)
    if not (np.isfinite(length) and length > 0):
        return 1.0
    if size <= _ROUNDING * length:
        return 0.0
    cosine = np.sum(together * alone) / (length * size)
    # The ratio of the norms is 1 / number of examples for a mean, and 1 for a sum.
    # Ratios in between are accepted, too, since a batch loss may be divided by the
    # number of unmasked positions.
    ratio = length / size
    is_mean_or_sum = (1 - _TOLERANCE) / len(alone) <= ratio <= 1 + _TOLERANCE
    if is_mean_or_sum and cosine >= 1 - _TOLERANCE**2 / 2:
        return 1.0
    return min(float(cosine), 1 - _ROUNDING)


def _gradients(loss: CompileLoss, example: Any) -> list[Any]:
    """Returns the gradients of a loss with respect to each output."""
    y, p, weight = example
    leaves = keras.tree.flatten(p)
    with tf.GradientTape() as tape, unscaled_losses():
        tape.watch(leaves)
        value = tf.reduce_sum(tf.convert_to_tensor(loss(y, p, weight)))
    gradients = tape.gradient(
        value, leaves, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    return [tf.convert_to_tensor(g).numpy().astype(np.float64) for g in gradients]


def _made_up(y: Any, y_pred: Any, weight: Any) -> Any:
    """Makes up targets, float32 outputs, and weights of 1."""
    outputs = batches.map_tensors(lambda t: tf.cast(t, tf.float32), y_pred)
    made = made_up((y, outputs, weight), _EXAMPLES)

    def with_ones(target: tf.Tensor) -> tf.Tensor:
        # Float targets may be class labels, for which 1 is the usual positive value.
        is_one = tf.cast(target, tf.float32) > 0.5
        return tf.where(is_one, tf.ones_like(target), target)

    return (
        batches.map_tensors(with_ones, made[0]),
        made[1],
        batches.map_tensors(tf.ones_like, made[2]),
    )
