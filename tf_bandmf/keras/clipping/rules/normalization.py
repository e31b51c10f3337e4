"""Norm rule of layers that normalize each example and then scale and shift."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.factors.base import Factor, Instantiated
from tf_bandmf.keras.clipping.rules.base import LayerCall, LayerRule, of_spread
from tf_bandmf.keras.clipping.rules.hub import NORMALIZATIONS
from tf_bandmf.keras.compat.keras_objects import split_into_groups

# The names of scale and shift, and what normalizes.
_KINDS: dict[type | str, tuple[str, str, Callable[..., tf.Tensor]]] = {
    keras.layers.LayerNormalization: ("gamma", "beta", keras.ops.layer_normalization),
    keras.layers.RMSNormalization: ("scale", "", keras.ops.rms_normalization),
}


class NormalizationRule(LayerRule):
    """`LayerNormalization` and `RMSNormalization`: scale * normalized + shift.

    Both are small: kept per example. KerasHub has more of the second kind, over the last
    axis, some of which add 1 to the scale.
    """

    kinds = (*_KINDS, *NORMALIZATIONS)

    def fits(self, layer: Any) -> bool:
        is_one = super().fits(layer) and not getattr(layer, "rms_scaling", False)
        return is_one and _per_example_axes(_axes(layer))

    def weights(self, layer: Any) -> Sequence[Any]:
        scale, shift, _ = _kind(layer)
        return getattr(layer, scale), getattr(layer, shift, None)

    def factors_of(self, call: LayerCall, gradient: tf.Tensor) -> Mapping[int, Factor]:
        layer = call.layer
        scale, shift = self.weights(layer)
        gradient = tf.cast(gradient, tf.float32)
        axes = _axes(layer)
        spread = [1] * gradient.shape.rank
        for axis in axes:
            spread[axis] = gradient.shape[axis]
        factors = of_spread(shift, gradient, spread)
        if scale is not None:
            inputs = tf.cast(call.inputs, tf.float32)
            normalized = _kind(layer)[2](inputs, axis=axes, epsilon=layer.epsilon)
            factors |= of_spread(scale, gradient * normalized, spread)
        return factors


def _kind(layer: Any) -> tuple[str, str, Callable[..., tf.Tensor]]:
    return _KINDS.get(type(layer), _KINDS[keras.layers.RMSNormalization])


def _axes(layer: Any) -> list[int]:
    """The axes over which a layer normalizes, and has scales for."""
    axis = getattr(layer, "axis", -1)
    return [axis] if isinstance(axis, int) else list(axis)


def _per_example_axes(axes: Sequence[int]) -> bool:
    """Says if axes are in increasing order and do not include the batch."""
    same_sign = all(a > 0 for a in axes) or all(a < 0 for a in axes)
    return same_sign and list(axes) == sorted(axes)


class GroupNormalizationRule(LayerRule):
    """`GroupNormalization` of channels that come last."""

    kinds = (keras.layers.GroupNormalization,)

    def fits(self, layer: Any) -> bool:
        return super().fits(layer) and layer.axis in (-1, layer.input_spec.ndim - 1)

    def weights(self, layer: Any) -> Sequence[Any]:
        return layer.gamma, layer.beta

    def factors_of(self, call: LayerCall, gradient: tf.Tensor) -> Mapping[int, Factor]:
        """See the base class.

        No normalized inputs are made: with mean m and scale r of a group,
        Σ g (x - m) r = r (Σ g x - m Σ g).
        """
        layer = call.layer
        inputs = tf.cast(call.inputs, tf.float32)
        gradient = tf.cast(gradient, tf.float32)
        axes = list(range(1, gradient.shape.rank - 1))
        sums = tf.reduce_sum(gradient, axis=axes)
        factors: dict[int, Factor] = {}
        if layer.beta is not None:
            factors[id(layer.beta)] = Instantiated(sums)
        if layer.gamma is not None:
            split = split_into_groups(layer, inputs)
            # As Keras writes it: TensorFlow computes what is the same only once.
            within = [*range(1, split.shape.rank - 2), split.shape.rank - 1]
            moments = keras.ops.moments(split, axes=within, keepdims=True)
            channels, groups = int(gradient.shape[-1]), int(split.shape[-2])
            mean, variance = (tf.reshape(part, [-1, groups, 1]) for part in moments)
            sums, products = (
                tf.reshape(part, [-1, groups, channels // groups])
                for part in (sums, tf.reduce_sum(gradient * inputs, axis=axes))
            )
            scaled = tf.math.rsqrt(variance + layer.epsilon) * (products - mean * sums)
            factors[id(layer.gamma)] = Instantiated(tf.reshape(scaled, [-1, channels]))
        return factors
