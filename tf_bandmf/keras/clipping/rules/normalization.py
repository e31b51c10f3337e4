"""Norm rules of layers that normalize each example and then scale and shift."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.factors import Factor, Instantiated
from tf_bandmf.keras.clipping.rules.base import (
    LayerCall,
    Rule,
    is_plain,
    kernel_shape,
    owns_only,
)


class _ScaleAndShiftRule(Rule):
    """Output = scale * normalized + shift; both are small: kept per example."""

    @abc.abstractmethod
    def parameters(self, layer: Any) -> tuple[Any, Any]:
        """Returns the scale and shift variables, or None for each."""

    @abc.abstractmethod
    def normalized(self, layer: Any, inputs: tf.Tensor) -> tf.Tensor:
        """Returns the normalized inputs before scale and shift."""

    def forward(self, call: LayerCall) -> Any:
        """See the base class."""
        return call.tap(call.run())

    def factors(
        self, call: LayerCall, gradients: Sequence[tf.Tensor | None]
    ) -> Mapping[int, Factor]:
        """See the base class."""
        (gradient,) = gradients
        if gradient is None:
            return {}
        scale, shift = self.parameters(call.layer)
        gradient = tf.cast(gradient, tf.float32)
        rank = gradient.shape.rank
        axes = call.layer.axis
        kept = {a % rank for a in ([axes] if isinstance(axes, int) else axes)}
        summed = [a for a in range(1, rank) if a not in kept]
        result: dict[int, Factor] = {}
        if scale is not None:
            normalized = self.normalized(call.layer, tf.cast(call.inputs, tf.float32))
            result[id(scale)] = _instantiated(gradient * normalized, summed, scale)
        if shift is not None:
            result[id(shift)] = _instantiated(gradient, summed, shift)
        return result


def _instantiated(gradient: tf.Tensor, summed: list[int], variable: Any) -> Factor:
    total = tf.reduce_sum(gradient, axis=summed)
    return Instantiated(tf.reshape(total, [-1, *kernel_shape(variable)]))


def _per_example_axes(axis: Any) -> bool:
    """Whether axes are in increasing order and do not include the batch."""
    axes = [axis] if isinstance(axis, int) else list(axis)
    same_sign = all(a > 0 for a in axes) or all(a < 0 for a in axes)
    return same_sign and axes == sorted(axes)


class LayerNormalizationRule(_ScaleAndShiftRule):
    """`LayerNormalization`."""

    def supports(self, layer: Any, variables: Sequence[Any]) -> bool:
        """See the base class."""
        return (
            is_plain(layer, keras.layers.LayerNormalization)
            and not getattr(layer, "rms_scaling", False)
            and _per_example_axes(layer.axis)
            and owns_only(variables, layer.gamma, layer.beta)
        )

    def parameters(self, layer: Any) -> tuple[Any, Any]:
        """See the base class."""
        return layer.gamma, layer.beta

    def normalized(self, layer: Any, inputs: tf.Tensor) -> tf.Tensor:
        """See the base class."""
        return keras.ops.layer_normalization(
            inputs, axis=layer.axis, epsilon=layer.epsilon
        )


class RMSNormalizationRule(_ScaleAndShiftRule):
    """`RMSNormalization`."""

    def supports(self, layer: Any, variables: Sequence[Any]) -> bool:
        """See the base class."""
        return (
            is_plain(layer, keras.layers.RMSNormalization)
            and _per_example_axes(layer.axis)
            and owns_only(variables, layer.scale)
        )

    def parameters(self, layer: Any) -> tuple[Any, Any]:
        """See the base class."""
        return layer.scale, None

    def normalized(self, layer: Any, inputs: tf.Tensor) -> tf.Tensor:
        """See the base class."""
        return keras.ops.rms_normalization(
            inputs, axis=layer.axis, epsilon=layer.epsilon
        )


class GroupNormalizationRule(_ScaleAndShiftRule):
    """`GroupNormalization`."""

    def supports(self, layer: Any, variables: Sequence[Any]) -> bool:
        """See the base class."""
        return (
            is_plain(layer, keras.layers.GroupNormalization)
            and isinstance(layer.axis, int)
            and layer.axis != 0
            and owns_only(variables, layer.gamma, layer.beta)
        )

    def parameters(self, layer: Any) -> tuple[Any, Any]:
        """See the base class."""
        return layer.gamma, layer.beta

    def normalized(self, layer: Any, inputs: tf.Tensor) -> tf.Tensor:
        """See the base class."""
        rank = inputs.shape.rank
        axis = layer.axis % rank
        shape = tf.shape(inputs)
        grouped = tf.concat(
            [
                shape[:axis],
                [layer.groups, shape[axis] // layer.groups],
                shape[axis + 1 :],
            ],
            axis=0,
        )
        split = tf.reshape(inputs, grouped)
        axes = [a for a in range(1, rank + 1) if a != axis]
        mean, variance = tf.nn.moments(split, axes=axes, keepdims=True)
        normalized = (split - mean) * tf.math.rsqrt(variance + layer.epsilon)
        return tf.reshape(normalized, tf.ensure_shape(shape, [rank]))
