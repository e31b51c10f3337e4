"""Losses that compare the examples of a batch with one another.

The private step takes each example's loss alone, so such a loss cannot leak. But it would
train on nothing: with one example there is nothing to compare. So it is refused, where
its graph on a whole batch shows it.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.independence.domain import NotIndependent, per_example
from tf_bandmf.keras.clipping.independence.evaluation import Evaluation
from tf_bandmf.keras.clipping.independence.sizes import BATCH
from tf_bandmf.keras.clipping.losses.compiled import compiled_loss
from tf_bandmf.keras.clipping.losses.rows import has_rows
from tf_bandmf.keras.clipping.tensors import batches
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.compat.keras_objects import (
    EXTRAS,
    CompileLoss,
    given_loss,
    loss_parts,
)
from tf_bandmf.keras.compat.replicas import unscaled_losses


def refuse_comparisons(
    model: keras.Model, y: Any, y_pred: Any, sample_weight: Any, size: int
) -> None:
    """Refuses a loss that combines examples otherwise than by a sum or mean.

    Args:
      model: a compiled model.
      y: targets, nested tensors [B, ...] of the graph that is being made.
      y_pred: predictions, likewise.
      sample_weight: None, or likewise.
      size: B, which occurs nowhere else in the shapes.

    Raises:
      UnsupportedModelError: if it does so for certain. A loss of which it is not known
        is executed for each example by itself like any other.
    """
    loss = compiled_loss(model)
    for part in _parts(loss) or keras.tree.flatten(given_loss(loss)):
        if isinstance(part, keras.losses.Circle) or (
            getattr(part, "fn", part) is keras.losses.circle
        ):
            raise _refusal(model, " (Circle)", "compares the examples of a batch")
    try:
        if not loss.built:
            loss.build(y, y_pred)
        # Not called, if they are known to compare nothing: that would take longer.
        if all(has_rows(part) for part in _parts(loss)):
            return
        copies = batches.map_tensors(_copy, (y, y_pred, sample_weight))
        with unscaled_losses():
            total = tf.convert_to_tensor(loss(*copies))
    except Exception:
        # A loss that takes single examples only: that is how it will be called.
        return
    known = {}
    for leaf in batches.tensor_leaves(copies):
        known[id(leaf)] = per_example(0, BATCH)
        for name in EXTRAS:
            extra = getattr(leaf, name, None)
            if extra is not None:
                known[id(extra)] = per_example(0, BATCH)
    try:
        Evaluation(known, static_batch=size, sums=True).value(total)
    except NotIndependent as error:
        if not error.mixes:
            return
        op = error.operation
        name = "" if op is None else f" in {op.name!r} ({op.type})"
        raise _refusal(model, name, error.reason) from error


def _parts(loss: CompileLoss) -> list[Any]:
    """The losses of the outputs, once they are known."""
    return [part.loss for part in loss_parts(loss)]


def _refusal(model: keras.Model, name: str, reason: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"The loss of model {model.name!r}{name} {reason}. The loss of an example must "
        "be its own, for a gradient of its own: it is taken on the example alone, where "
        "there is nothing to compare it with. Use a loss of single examples, or make "
        "what is compared one example (a pair, a row with its negatives)."
    )


def _copy(tensor: tf.Tensor) -> tf.Tensor:
    copied = tf.identity(tensor)
    for name in EXTRAS:
        extra = getattr(tensor, name, None)
        if extra is not None:
            setattr(copied, name, tf.identity(extra))
    return copied
