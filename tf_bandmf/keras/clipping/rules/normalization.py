"""Norm rule of layers that normalize each example, then scale and shift the result.

To get the normalized values, the layer is run without scaling and shifting.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from keras import layers

from tf_bandmf.keras.clipping.factors.base import Factor
from tf_bandmf.keras.clipping.rules.base import LayerCall, LayerRule, of_spread

# For each class, the value of the scale variable at which the layer does not scale.
# KerasHub layers are recognized by their full names, since KerasHub may not be
# installed. Gemma layers scale by 1 plus the variable.
_NEUTRAL: dict[type | str, float] = {
    layers.LayerNormalization: 1.0,
    layers.RMSNormalization: 1.0,
    layers.GroupNormalization: 1.0,
    "keras_hub.src.models.gemma.rms_normalization.RMSNormalization": 0.0,
    "keras_hub.src.models.gemma3.gemma3_layers.RMSNormalization": 0.0,
    "keras_hub.src.models.llama.llama_layernorm.LlamaLayerNorm": 1.0,
}


class NormalizationRule(LayerRule):
    """The rule for layer, RMS and group normalization: scale * normalized + shift.

    Scale and shift are small, so their per-example gradients are stored directly.
    """

    kinds = tuple(_NEUTRAL)

    def fits(self, layer: Any) -> bool:
        if not super().fits(layer):
            return False
        # The axes must be in increasing order, and must not include the batch axis.
        axes = _axes(layer)
        same_sign = all(a > 0 for a in axes) or all(a < 0 for a in axes)
        return same_sign and axes == sorted(axes)

    def weights(self, layer: Any) -> Sequence[Any]:
        # If a layer has `gamma`, its `scale` is only a flag.
        return getattr(layer, _scale(layer)), getattr(layer, "beta", None)

    def factors(self, call: LayerCall, gradient: tf.Tensor) -> Mapping[int, Factor]:
        scale, shift = self.weights(call.layer)
        gradient = tf.cast(gradient, tf.float32)
        spread = [1] * gradient.shape.rank
        for axis in _axes(call.layer):
            spread[axis] = gradient.shape[axis]
        factors = of_spread(shift, gradient, spread)
        if scale is None:
            return factors
        name, kind = _scale(call.layer), type(call.layer)
        neutral = _NEUTRAL.get(kind, _NEUTRAL.get(f"{kind.__module__}.{kind.__name__}"))
        others = {} if shift is None else {"beta": tf.zeros(shift.shape)}
        normalized = call.run_with(**{name: tf.fill(scale.shape, neutral)}, **others)
        scaled = gradient * tf.cast(normalized, tf.float32)
        return {**factors, **of_spread(scale, scaled, spread)}


def _scale(layer: Any) -> str:
    return "gamma" if hasattr(layer, "gamma") else "scale"


def _axes(layer: Any) -> list[int]:
    """Returns the axes along which the layer's scale varies."""
    axis = getattr(layer, "axis", -1)
    return [axis] if isinstance(axis, int) else list(axis)
