"""How gradients are clipped: the settings, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.errors import UnsupportedModelError
from tf_bandmf.keras.clipping.factors.norms import automatic_weights, clip_weights
from tf_bandmf.keras.clipping.groups import Grouping, grouping
from tf_bandmf.keras.clipping.tensors.variables import trainable_variables

# Larger ones make every float32 gradient infinite.
_LARGEST_SCALE = 2**127


class Clip(NamedTuple):
    """How gradients are clipped.

    Attributes:
      parts: groups of variables and their clip norms, numbers or float64 tensors.
      automatic: Gamma of automatic clipping, or None.
      scale: of the losses in the backward pass, a power of two.
      scales: of the coordinates of gradients, before they are clipped; or empty.
    """

    parts: Grouping
    automatic: float | None
    scale: float
    scales: tuple[tf.Tensor, ...] = ()

    def negligible(self, group: int) -> float | tf.Tensor:
        """Squared norm, of scaled gradients, below which a bound need not be tight."""
        clip = self.parts.clips[group]
        return ((clip if self.automatic is None else self.automatic) * self.scale) ** 2

    def weights(self, bounds: tf.Tensor, group: int) -> tf.Tensor:
        """What gradients are multiplied by, [B] float32, from bounds of squared norms."""
        clip = self.parts.clips[group]
        if self.automatic is None:
            return clip_weights(bounds, clip)
        return automatic_weights(bounds, clip, self.automatic)


def how_to_clip(
    model: keras.Model,
    l2_norm_clip: float,
    loss_scale_factor: float | None,
    automatic: float | None,
    groups: str | Mapping[str, float] | None,
    scales: Sequence[tf.Tensor] | None,
) -> Clip:
    """The arguments of that name of `clipped_gradient_sums`, checked."""
    scale = _checked_scale(model, loss_scale_factor)
    if automatic is not None and not (math.isfinite(automatic) and automatic > 0):
        raise ValueError(f"`automatic` must be positive and finite, found {automatic}.")
    variables = trainable_variables(model)
    parts = grouping(groups, variables, l2_norm_clip)
    if scales is not None:
        scales = [tf.convert_to_tensor(s, tf.float32) for s in scales]
        if [tuple(s.shape) for s in scales] != [tuple(v.shape) for v in variables]:
            raise ValueError(
                f"`scales` must have the shapes of the {len(variables)} trainable "
                f"weights, found {[tuple(s.shape) for s in scales]}."
            )
    return Clip(parts, automatic, scale, tuple(scales or ()))


def is_loss_scale(value: Any) -> bool:
    """Whether multiplying by a number and dividing by it again is exact."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return 1 <= value <= _LARGEST_SCALE and math.frexp(value)[0] == 0.5


def _checked_scale(model: keras.Model, loss_scale_factor: float | None) -> float:
    if loss_scale_factor is not None:
        if not is_loss_scale(loss_scale_factor):
            raise ValueError(
                f"`loss_scale_factor` must be a power of two >= 1, found "
                f"{loss_scale_factor!r}."
            )
        return float(loss_scale_factor)
    for layer in model._flatten_layers():
        if layer.compute_dtype == "float16":
            raise UnsupportedModelError(
                f"Layer {layer.name!r} ({type(layer).__name__}) computes in float16, "
                "where small gradients vanish: give `PrivateOptimizer` a static scale, "
                "such as `loss_scale_factor=1024`, or use the dtype policy "
                "`mixed_bfloat16`, which needs none."
            )
    return 1.0
