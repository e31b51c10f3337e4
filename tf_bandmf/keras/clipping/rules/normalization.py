"""Norm rule of layers that normalize each example and then scale and shift."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from keras import layers, ops

from tf_bandmf.keras.clipping.factors.base import Factor, Instantiated
from tf_bandmf.keras.clipping.rules.base import LayerCall, LayerRule, of_spread
from tf_bandmf.keras.clipping.rules.hub import NORMALIZATIONS
from tf_bandmf.keras.clipping.tensors.batches import reshape_examples
from tf_bandmf.keras.compat.keras_objects import split_into_groups


class NormalizationRule(LayerRule):
    """Normalizations of layers, root mean squares and groups: scale * normalized + shift.

    Scale and shift are small: kept per example. KerasHub has more of the second kind, over
    the last axis, some of which add 1 to the scale.
    """

    kinds = (
        layers.LayerNormalization,
        layers.RMSNormalization,
        layers.GroupNormalization,
        *NORMALIZATIONS,
    )

    def fits(self, layer: Any) -> bool:
        if not super().fits(layer) or getattr(layer, "rms_scaling", False):
            return False
        # In increasing order, and without the batch.
        axes = _axes(layer)
        same_sign = all(a > 0 for a in axes) or all(a < 0 for a in axes)
        return same_sign and axes == sorted(axes)

    def weights(self, layer: Any) -> Sequence[Any]:
        # `scale` of a layer with `gamma` says if it has one.
        scale = layer.gamma if hasattr(layer, "gamma") else layer.scale
        return scale, getattr(layer, "beta", None)

    def factors_of(self, call: LayerCall, gradient: tf.Tensor) -> Mapping[int, Factor]:
        layer, inputs = call.layer, tf.cast(call.inputs, tf.float32)
        scale, shift = self.weights(layer)
        gradient = tf.cast(gradient, tf.float32)
        spread = [1] * gradient.shape.rank
        for axis in _axes(layer):
            spread[axis] = gradient.shape[axis]
        factors = of_spread(shift, gradient, spread)
        if scale is None:
            return factors
        if isinstance(layer, layers.GroupNormalization):
            sums, products = (
                of_spread(scale, part, spread)[id(scale)].instantiate()
                for part in (gradient, gradient * inputs)
            )
            scaled = _of_groups(layer, inputs, sums, products)
            return {**factors, id(scale): Instantiated(scaled)}
        is_centered = isinstance(layer, layers.LayerNormalization)
        normalize = ops.layer_normalization if is_centered else ops.rms_normalization
        normalized = normalize(inputs, axis=_axes(layer), epsilon=layer.epsilon)
        return {**factors, **of_spread(scale, gradient * normalized, spread)}


def _axes(layer: Any) -> list[int]:
    """The axes that a layer has scales for."""
    axis = getattr(layer, "axis", -1)
    return [axis] if isinstance(axis, int) else list(axis)


def _of_groups(
    layer: Any, inputs: tf.Tensor, sums: tf.Tensor, products: tf.Tensor
) -> tf.Tensor:
    """Gradients of the scale of a `GroupNormalization`, [B, C].

    No normalized inputs are made: with mean m and inverse deviation r of a group,
    Σ g (x - m) r = r (Σ g x - m Σ g).

    Args:
      layer: the layer.
      inputs: [B, ...], x.
      sums: Σ g, [B, C].
      products: Σ g x, [B, C].
    """
    split, of_groups = split_into_groups(layer, inputs), layer.axis % inputs.shape.rank
    within = [axis for axis in range(1, split.shape.rank) if axis != of_groups]
    # As Keras writes it: TensorFlow computes what is the same only once.
    moments = ops.moments(split, axes=within, keepdims=True)
    mean, variance = (tf.reshape(part, [-1, layer.groups, 1]) for part in moments)
    sums, products = (
        reshape_examples(part, layer.groups, sums.shape[1] // layer.groups)
        for part in (sums, products)
    )
    scaled = tf.math.rsqrt(variance + layer.epsilon) * (products - mean * sums)
    return tf.reshape(scaled, [-1, layer.gamma.shape[0]])
