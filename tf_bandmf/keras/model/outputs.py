"""Refuses settings that would spend a budget and learn nothing, from shapes alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.sampling.identity import TARGETS

# Losses of classes, and what makes probabilities for them.
_CLASSES = (
    keras.losses.SparseCategoricalCrossentropy,
    keras.losses.CategoricalCrossentropy,
)
_FUNCTIONS = {
    keras.losses.sparse_categorical_crossentropy: _CLASSES[0],
    keras.losses.categorical_crossentropy: _CLASSES[1],
    keras.losses.binary_crossentropy: keras.losses.BinaryCrossentropy,
}


def refuse_outputs(
    model: keras.Model,
    class_weight: Mapping[int, float] | None,
    ranges: Mapping[str, Any],
) -> None:
    """Refuses settings that would spend a budget and learn nothing.

    Args:
      model: private, built, compiled.
      class_weight: of `fit`, or None.
      ranges: that were declared; see `Plan.batches`.

    Raises:
      ValueError: if the gradients of all examples are zero, a class has a weight and no
        output, declared labels have none, or the loss divides by the weights of classes.
    """
    losses = tf.nest.flatten(_given_loss(model))
    if class_weight is not None and any(
        getattr(loss, "reduction", None) == "mean_with_sample_weight" for loss in losses
    ):
        raise ValueError(
            "A loss with reduction='mean_with_sample_weight' divides by the weights again, "
            "so that class_weight would act only where gradients are clipped. Use "
            "reduction='sum_over_batch_size'. Nothing was trained."
        )
    layer, size = last_layer(model)
    if layer is None:
        return
    where, activation = described(layer)
    if activation == "softmax" and size == 1:
        raise ValueError(
            f"{where} has one output under softmax, which is always 1: no gradient, and "
            f"nothing is learnt. For two classes use activation='sigmoid' with "
            f"binary_crossentropy. Nothing was trained."
        )
    kind, _ = loss_of(model)
    if kind in _CLASSES and size == 1:
        raise ValueError(
            f"{where} has one output, and {kind.__name__} is for one output per class. Use "
            f"Dense(classes, activation='softmax'), or for two classes 'sigmoid' with "
            f"binary_crossentropy. Nothing was trained."
        )
    beyond = sorted(c for c in class_weight or () if isinstance(c, int) and c >= size)
    if kind in _CLASSES and beyond:
        raise ValueError(
            f"class_weight has a weight for class {beyond[0]}, and {where[0].lower()}"
            f"{where[1:]} has outputs for the classes 0 to {size - 1}. Nothing was trained."
        )
    labels = tf.nest.flatten(ranges.get(TARGETS, ()))
    if kind is _CLASSES[0] and labels and (min(labels) < 0 or max(labels) > size - 1):
        raise ValueError(
            f"Labels are declared to be from {min(labels)} to {max(labels)}, and "
            f"{where[0].lower()}{where[1:]} has outputs for the classes 0 to {size - 1}: "
            f"examples of other classes would teach nothing. Nothing was trained."
        )


def described(layer: Any) -> tuple[str, str]:
    """How a message names the last layer, and the name of its activation."""
    activation = getattr(getattr(layer, "activation", None), "__name__", "")
    return f"The model's last layer, {layer.name!r},", activation


def last_layer(model: keras.Model) -> tuple[Any, int]:
    """The layer of a model's only output, and how many numbers it has; or None."""
    outputs = getattr(model, "outputs", None) or []
    if len(outputs) != 1 or outputs[0].shape[-1] is None:
        return None, 0
    for layer in reversed(model.layers):
        try:
            if layer.output is outputs[0]:
                return layer, int(outputs[0].shape[-1])
        except (AttributeError, ValueError):  # called several times, or never
            continue
    return None, 0


def _given_loss(model: keras.Model) -> Any:
    """What a model is compiled with; of a name what it stands for."""
    loss = model.loss
    return keras.losses.get(loss) if isinstance(loss, str) else loss


def loss_of(model: keras.Model) -> tuple[Any, bool]:
    """The class of a known loss of one output, and whether it is of logits."""
    loss = _given_loss(model)
    for function, kind in _FUNCTIONS.items():
        if loss is function:
            return kind, False
    for kind in _FUNCTIONS.values():
        if type(loss) is kind:
            return kind, bool(loss.get_config().get("from_logits", False))
    return None, False
