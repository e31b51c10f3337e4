"""Finds models that cannot learn, before the first step, from shapes and settings.

No value of a record is used, so this costs no privacy; problems that it does not see
are counted privately, see `run.counts`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.compat.keras_objects import all_layers
from tf_bandmf.sampling.batches import INPUTS, ROWS, TARGETS

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
# Losses that compare targets and outputs number by number, and let one stand for more.
_BY_NUMBER = (
    keras.losses.MeanSquaredError,
    keras.losses.MeanAbsoluteError,
    keras.losses.MeanAbsolutePercentageError,
    keras.losses.MeanSquaredLogarithmicError,
    keras.losses.Huber,
    keras.losses.LogCosh,
    keras.losses.Hinge,
    keras.losses.SquaredHinge,
)
_NO_PROBABILITIES = ("linear", "relu", "tanh", "elu", "gelu", "silu", "leaky_relu")
# Declared values beyond which inputs are called unscaled.
_LARGE = 30.0
_SCALES = (
    keras.layers.Rescaling,
    keras.layers.Normalization,
    keras.layers.Embedding,
    keras.layers.Lambda,
)


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
    layer, size = _last(model)
    if layer is None:
        return
    where, activation = _described(layer)
    if activation == "softmax" and size == 1:
        raise ValueError(
            f"{where} has one output under softmax, which is always 1: no gradient, and "
            f"nothing is learnt. For two classes use activation='sigmoid' with "
            f"binary_crossentropy. Nothing was trained."
        )
    kind, _ = _loss_of(model)
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


def warn_of_outputs(model: keras.Model, data: Any, ranges: Mapping[str, Any]) -> None:
    """Warns of settings that would spend a budget and likely learn nothing.

    Args:
      model: private, built, compiled.
      data: of `fit`; the types of its inputs matter, where it has `element_spec`.
      ranges: that were declared; see `Plan.batches`.
    """
    _warn_of_bytes(model, data, ranges)
    layer, _ = _last(model)
    if layer is None:
        return
    where, activation = _described(layer)
    _warn_of_broadcast(model, data, where)
    kind, from_logits = _loss_of(model)
    if kind is not None and not from_logits and activation in _NO_PROBABILITIES:
        warnings.warn(
            f"{where} has no softmax or sigmoid, and {kind.__name__} expects "
            f"probabilities: what is outside of 0 and 1 has no gradient. Give the loss "
            f"from_logits=True.",
            stacklevel=4,
        )


def _described(layer: Any) -> tuple[str, str]:
    """How a message names the last layer, and the name of its activation."""
    activation = getattr(getattr(layer, "activation", None), "__name__", "")
    return f"The model's last layer, {layer.name!r},", activation


def _last(model: keras.Model) -> tuple[Any, int]:
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


def _loss_of(model: keras.Model) -> tuple[Any, bool]:
    """The class of a known loss of one output, and whether it is of logits."""
    loss = _given_loss(model)
    for function, kind in _FUNCTIONS.items():
        if loss is function:
            return kind, False
    for kind in _FUNCTIONS.values():
        if type(loss) is kind:
            return kind, bool(loss.get_config().get("from_logits", False))
    return None, False


def _warn_of_broadcast(model: keras.Model, data: Any, where: str) -> None:
    """Warns if one number stands for several: TensorFlow repeats it silently."""
    loss = _given_loss(model)
    functions = [kind().fn for kind in _BY_NUMBER]
    if type(loss) not in _BY_NUMBER and loss not in functions:
        return
    spec = _spec_of(data)
    targets = tf.nest.flatten(spec.get(TARGETS), expand_composites=True)
    if len(targets) != 1 or not isinstance(targets[0], tf.TensorSpec):
        return
    # Where a unit has several rows, the second axis of targets is its rows.
    target = _of_one(targets[0].shape, axes=2 if ROWS in spec else 1)
    output = _of_one(model.outputs[0].shape)
    # Keras takes a last axis of one number away where the other has none.
    if None in (*target, *output) or output in (target, (*target, 1)):
        return
    if target == (*output, 1):
        return
    warnings.warn(
        f"{where} gives an example numbers of shape {output}, and its targets have shape "
        f"{target}: the loss repeats the smaller ones and compares each with each. Give "
        f"targets of the output's shape.",
        stacklevel=5,
    )


def _of_one(shape: Any, axes: int = 1) -> tuple[int | None, ...]:
    """Of one row, after the axes of examples and rows."""
    return (None,) if tf.TensorShape(shape).rank is None else tuple(shape)[axes:]


def _spec_of(data: Any) -> dict[str, Any]:
    spec = getattr(data, "element_spec", None)
    return spec if isinstance(spec, dict) else {}


def _warn_of_bytes(model: keras.Model, data: Any, ranges: Mapping[str, Any]) -> None:
    spec = _spec_of(data)
    # With replicas each holds one spec for every one of them.
    leaves = tf.nest.flatten(spec.get(INPUTS), expand_composites=True)
    is_bytes = any(getattr(leaf, "dtype", None) == tf.uint8 for leaf in leaves)
    largest = max(
        (abs(b) for b in tf.nest.flatten(ranges.get(INPUTS, ())) if math.isfinite(b)),
        default=0.0,
    )
    if is_bytes:
        largest = 255
    if largest <= _LARGE or any(
        isinstance(layer, _SCALES) for layer in all_layers(model)
    ):
        return
    warnings.warn(
        f"Inputs are {'bytes (uint8)' if is_bytes else 'declared'} up to {largest:g} and "
        f"no layer scales them: gradients of such numbers are all clipped, and one weight "
        f"gets as much noise as another. Divide by {largest:g}, in map= or by a Rescaling "
        f"layer.",
        stacklevel=4,
    )
