"""Finds losses that are meaningful only for a batch, and refuses them or warns.

Private training computes the loss of each example alone. A loss that compares examples
(Cox's partial likelihood, a covariance, in-batch negatives) has no gradient for a
single example, so it would train on noise. A loss made of sums over the batch (Dice,
R², hard examples) has a gradient for a single example, but is a different loss there.
Both kinds are found by comparing the gradient of the loss of a batch with the gradients
of the losses of its examples alone. Outputs and targets are made up, with the model's
shapes and dtypes.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_bandmf.keras.clipping.losses.compiled import compiled_loss
from tf_bandmf.keras.clipping.losses.rows import has_rows
from tf_bandmf.keras.clipping.tensors import batches
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.clipping.tensors.made_up import made_up
from tf_bandmf.keras.compat.keras_objects import CompileLoss, loss_parts
from tf_bandmf.keras.compat.replicas import unscaled_losses

_EXAMPLES, _ELEMENTS = 8, 2**22
# Length of made-up tensors along axes whose length is unknown.
_LENGTH = 6
# Both bounds are relative to the norm of the batch gradient. Gradients of single
# examples below _ROUNDING count as zero. They count as terms of the batch gradient if a
# multiple of them differs from it by at most _TOLERANCE.
_ROUNDING, _TOLERANCE = 1e-3, 1e-2
_WAY_OUT = (
    "Use a loss of single examples, or put all that is compared into one example (a pair, "
    "a row with its negatives, all rows of a user)."
)


def check_loss(model: keras.Model, y: Any, y_pred: Any, sample_weight: Any) -> None:
    """Refuses a compiled loss that compares examples; warns if it combines examples.

    Args:
      model: a compiled model.
      y: targets, nested tensors [B, ...]; only their shapes and dtypes matter.
      y_pred: predictions, likewise.
      sample_weight: None, or likewise.

    Raises:
      UnsupportedModelError: if a batch of made-up examples has gradients, but those of
        a single example are zero, not finite, or cannot be computed.
    """
    specs = batches.map_tensors(
        lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype),
        (y, y_pred, sample_weight),
    )
    with tf.init_scope(), unscaled_losses():
        loss = compiled_loss(model)
        cosines = _cosines(model, loss, specs)
    others = {place: cosine for place, cosine in cosines.items() if cosine < 1}
    for place, each in others.items():
        if each == 0.0:
            raise _refusal(model, loss, "has no gradient", place)
    if others:
        cosine = min(others.values())
        warnings.warn(
            f"The loss {_name(loss, min(others))} of model {model.name!r} combines the "
            f"examples of a batch: on made-up outputs, its gradient is not the mean of "
            f"those of single examples (cosine {cosine:.2f}). Private training computes "
            f"the loss of each example alone and trains on the mean, which is another "
            f"loss. The loss of the whole batch cannot be trained privately. {_WAY_OUT} "
            f"`keras.losses.Dice` and `Tversky` are losses of single examples if their "
            f"`axis=` leaves out the batch axis.",
            stacklevel=2,
        )


def _cosines(model: keras.Model, loss: CompileLoss, specs: Any) -> dict[int, float]:
    """Returns `_cosine` by output number, for the outputs that can be compared.

    Raises:
      UnsupportedModelError: if the loss of a single example fails.
    """
    y, p, _ = specs
    sizes = [math.prod(_sizes(leaf)) for leaf in keras.tree.flatten((y, p))]
    count = min(_EXAMPLES, max(3, _ELEMENTS // max(1, *sizes)))
    gradients = _gradients_of(loss)
    for as_classes in (False, True):
        made = _made_up(specs, count, as_classes)
        try:
            if not loss.built:
                loss.build(*made[:2])
        except Exception:
            return {}  # The training step will fail, too, and give the reason.
        if all(has_rows(part.loss) for part in loss_parts(loss)):
            return {}
        try:
            together = gradients(made)
        except Exception:
            continue
        try:
            each = [gradients(one) for one in batches.single_examples(made)]
        except Exception as error:
            problem = f"fails ({type(error).__name__})"
            raise _refusal(model, loss, problem) from error
        alone = [np.concatenate(parts) for parts in zip(*each, strict=True)]
        compared = enumerate(map(_cosine, together, alone))
        cosines = {place: cosine for place, cosine in compared if cosine is not None}
        is_other = any(cosine < 1 for cosine in cosines.values())
        if is_other and any(map(_differ, together, gradients(made))):
            return {}  # The loss draws random numbers.
        if cosines:
            return cosines
    return {}


def _cosine(together: Any, alone: Any) -> float | None:
    """Returns the cosine between the batch gradient and those of single examples.

    The cosine is 0 if single examples have no gradients, 1 only if their gradients are
    the terms of the batch gradient, and None if the batch gradient is zero or not
    finite.
    """
    length = np.linalg.norm(together)
    if not (np.isfinite(length) and length > 0):
        return None
    finite = np.isfinite(alone).reshape(len(alone), -1).all(axis=1)
    alone = np.where(finite.reshape(-1, *[1] * (alone.ndim - 1)), alone, 0)
    size = np.linalg.norm(alone)
    if size <= _ROUNDING * length:
        return 0.0
    ratio = np.sum(together * alone) / size**2
    # The ratio is 1 / number of examples for a mean, and 1 for a sum. Ratios in between
    # are accepted, too, since a batch loss may be divided by the number of unmasked
    # positions.
    is_mean_or_sum = (1 - _TOLERANCE) / len(alone) <= ratio <= 1 + _TOLERANCE
    is_close = np.linalg.norm(together - ratio * alone) <= _TOLERANCE * length
    if is_mean_or_sum and is_close:
        return 1.0
    return min(float(ratio * size / length), 1 - _ROUNDING)


def _gradients_of(loss: CompileLoss) -> Callable[[Any], list[Any]]:
    """Returns a function from a made-up batch to the loss gradient for each output."""

    def traced(y: Any, p: Any, weight: Any) -> list[tf.Tensor]:
        leaves = keras.tree.flatten(p)
        value = tf.reduce_sum(tf.convert_to_tensor(loss(y, p, weight)))
        # A tape would record nothing, since `tf.init_scope` stops recording.
        gradients = tf.gradients(
            value, leaves, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        return [tf.convert_to_tensor(gradient) for gradient in gradients]

    function = tf.function(traced, autograph=False)
    return lambda made: [g.numpy().astype(np.float64) for g in function(*made)]


def _differ(one: Any, other: Any) -> bool:
    return not np.allclose(one, other, rtol=1e-4, atol=1e-7, equal_nan=True)


def _sizes(spec: Any) -> list[int]:
    """Returns the shape of one example."""
    shape = () if spec is None else spec.shape[1:]
    return [_LENGTH if size is None else size for size in shape]


def _made_up(specs: Any, count: int, as_classes: bool) -> Any:
    """Makes up targets, float32 outputs and weights of 1 for specs [B, ...].

    Args:
      specs: specs of targets, outputs and sample weights.
      count: the number of examples.
      as_classes: True to make targets 0 or 1 even if they are floats.
    """
    y, p, weight = keras.tree.map_structure(
        lambda s: None if s is None else tf.zeros((count, *_sizes(s)), s.dtype), specs
    )
    targets = _cast(y, tf.int32) if as_classes else y
    targets, p = made_up((targets, _cast(p, tf.float32)), count)
    targets = keras.tree.map_structure(
        lambda made, like: None if like is None else tf.cast(made, like.dtype),
        targets,
        y,
    )
    return targets, p, batches.map_tensors(tf.ones_like, weight)


def _cast(structure: Any, dtype: Any) -> Any:
    return batches.map_tensors(lambda tensor: tf.cast(tensor, dtype), structure)


def _name(loss: CompileLoss, place: int | None = None) -> str:
    names = [repr(part.loss.name) for part in loss_parts(loss)]
    return (
        names[place] if place is not None and place < len(names) else ", ".join(names)
    )


def _refusal(
    model: keras.Model, loss: CompileLoss, problem: str, place: int | None = None
) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"The loss {_name(loss, place)} of model {model.name!r} would teach nothing. In "
        f"private training it is computed for each example alone. There it {problem} on "
        f"made-up outputs, unlike the loss of several examples together: it compares the "
        f"examples of a batch. {_WAY_OUT}"
    )
