"""Norm rules of layers that normalize each example and then scale and shift."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.factors.base import Factor, Instantiated
from tf_bandmf.keras.clipping.rules.base import (
    LayerCall,
    OneTapRule,
    is_plain,
    kernel_shape,
    owns_only,
)
from tf_bandmf.keras.clipping.tensors.batches import reshape_examples
from tf_bandmf.keras.compat.keras_objects import split_into_groups

# The names of scale and shift, and what normalizes.
_KINDS: dict[type, tuple[str, str, Callable[..., tf.Tensor]]] = {
    keras.layers.LayerNormalization: ("gamma", "beta", keras.ops.layer_normalization),
    keras.layers.RMSNormalization: ("scale", "", keras.ops.rms_normalization),
}


class NormalizationRule(OneTapRule):
    """`LayerNormalization` and `RMSNormalization`: scale * normalized + shift.

    Both are small: kept per example.
    """

    def supports(self, layer: Any, variables: Sequence[Any]) -> bool:
        return (
            is_plain(layer, *_KINDS)
            and not getattr(layer, "rms_scaling", False)
            and _per_example_axes(layer.axis)
            and owns_only(variables, *self.parameters(layer))
        )

    def parameters(self, layer: Any) -> tuple[Any, Any]:
        """The scale and shift variables, or None for each."""
        scale, shift, _ = _KINDS[type(layer)]
        return getattr(layer, scale), getattr(layer, shift, None)

    def factors_of(self, call: LayerCall, gradient: tf.Tensor) -> Mapping[int, Factor]:
        scale, shift = self.parameters(call.layer)
        gradient = tf.cast(gradient, tf.float32)
        rank = gradient.shape.rank
        axes = call.layer.axis
        kept = {a % rank for a in ([axes] if isinstance(axes, int) else axes)}
        summed = [a for a in range(1, rank) if a not in kept]
        result: dict[int, Factor] = {}
        if scale is not None:
            normalized = _KINDS[type(call.layer)][2](
                tf.cast(call.inputs, tf.float32), axis=axes, epsilon=call.layer.epsilon
            )
            result[id(scale)] = _instantiated(gradient * normalized, summed, scale)
        if shift is not None:
            result[id(shift)] = _instantiated(gradient, summed, shift)
        return result


def _instantiated(gradient: tf.Tensor, summed: list[int], variable: Any) -> Factor:
    total = tf.reduce_sum(gradient, axis=summed)
    return Instantiated(reshape_examples(total, *kernel_shape(variable)))


def _per_example_axes(axis: Any) -> bool:
    """Whether axes are in increasing order and do not include the batch."""
    axes = [axis] if isinstance(axis, int) else list(axis)
    same_sign = all(a > 0 for a in axes) or all(a < 0 for a in axes)
    return same_sign and axes == sorted(axes)


class GroupNormalizationRule(NormalizationRule):
    """`GroupNormalization` of channels that come last."""

    def supports(self, layer: Any, variables: Sequence[Any]) -> bool:
        return (
            is_plain(layer, keras.layers.GroupNormalization)
            and layer.axis in (-1, layer.input_spec.ndim - 1)
            and owns_only(variables, layer.gamma, layer.beta)
        )

    def parameters(self, layer: Any) -> tuple[Any, Any]:
        return layer.gamma, layer.beta

    def factors_of(self, call: LayerCall, gradient: tf.Tensor) -> Mapping[int, Factor]:
        """See the base class.

        No normalized inputs are made: with mean m and scale r of a group,
        Σ g (x - m) r = r (Σ g x - m Σ g).
        """
        layer = call.layer
        if layer.gamma is None:
            return super().factors_of(call, gradient)
        inputs = tf.cast(call.inputs, tf.float32)
        gradient = tf.cast(gradient, tf.float32)
        axes = list(range(1, gradient.shape.rank - 1))
        split = split_into_groups(layer, inputs)
        # As Keras writes it: TensorFlow computes what is the same only once.
        within = [*range(1, split.shape.rank - 2), split.shape.rank - 1]
        moments = keras.ops.moments(split, axes=within, keepdims=True)
        channels = int(gradient.shape[-1])
        groups = int(split.shape[-2])
        mean, variance = (tf.reshape(part, [-1, groups, 1]) for part in moments)
        sums, products = (
            tf.reshape(tf.reduce_sum(part, axis=axes), [-1, groups, channels // groups])
            for part in (gradient, gradient * inputs)
        )
        scaled = tf.math.rsqrt(variance + layer.epsilon) * (products - mean * sums)
        scaled, sums = (tf.reshape(part, [-1, channels]) for part in (scaled, sums))
        result: dict[int, Factor] = {id(layer.gamma): Instantiated(scaled)}
        if layer.beta is not None:
            result[id(layer.beta)] = Instantiated(sums)
        return result
