"""Norm rule for layers whose kernel is computed from a weight (weight standardization).

Such a layer is a subclass of a Keras layer that overrides only the property `kernel`:

    class StandardizedConv2D(keras.layers.Conv2D):
        @property
        def kernel(self):
            mean, variance = keras.ops.moments(self._kernel, axes=(0, 1, 2), keepdims=True)
            return (self._kernel - mean) * keras.ops.rsqrt(variance + 1e-5)

The subclass uses the kernel in the same way as the Keras layer. The gradient of the
weight is the gradient of the kernel, backpropagated through the property. For each
example, this step needs no convolution, only cheap operations on the kernel gradient.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_bandmf.keras.clipping.factors.base import Factor
from tf_bandmf.keras.clipping.independence.map_examples import map_examples
from tf_bandmf.keras.clipping.rules.base import (
    LayerCall,
    LayerRule,
    PreActivationRule,
    is_plain,
    overridden,
)
from tf_bandmf.keras.compat.keras_objects import kernel_of, tensorflow_value


class KernelFunctionRule(PreActivationRule):
    """The rule for subclasses of Keras layers that override only `kernel`.

    Args:
      rule: the rule for the Keras layers themselves.
      kinds: the classes of these Keras layers.
    """

    def __init__(self, rule: LayerRule, *kinds: type) -> None:
        self._rule, self._kinds = rule, kinds

    def fits(self, layer: Any) -> bool:
        kind = next((kind for kind in self._kinds if isinstance(layer, kind)), None)
        if kind is None or not is_plain(layer, type(layer)):
            return False
        return overridden(layer, kind) - {"get_config", "from_config"} == {"kernel"}

    def factors(self, call: LayerCall, gradient: tf.Tensor) -> Mapping[int, Factor]:
        factors, weight = self._rule.factors(call, gradient), id(kernel_of(call.layer))
        return {**factors, weight: PulledBack(call.layer, factors[weight])}


@dataclasses.dataclass(frozen=True)
class PulledBack(Factor):
    """Gradients of a weight, backpropagated from the gradients of the kernel.

    Attributes:
      layer: the layer that owns the weight and computes the kernel.
      of_kernel: the gradients of the kernel.
    """

    layer: Any
    of_kernel: Factor

    def of_units(self, rows: int) -> Factor:
        """Sums the kernel gradients of each unit, and then backpropagates the sums.

        Backpropagation is linear, so it may come after the sum.
        """
        return PulledBack(self.layer, self.of_kernel.of_units(rows))

    def instantiate(self) -> tf.Tensor:
        layer, weight = self.layer, tensorflow_value(kernel_of(self.layer))

        def pulled_back(of_unit: tf.Tensor) -> list[tf.Tensor]:
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(weight)
                kernel = tf.convert_to_tensor(layer.kernel)
            pulled = tape.gradient(
                kernel,
                weight,
                output_gradients=tf.cast(of_unit, kernel.dtype),
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
            return [tf.convert_to_tensor(pulled)]

        name = f"The kernel of layer {layer.name!r} ({type(layer).__name__})"
        (of_weight,) = map_examples(pulled_back, self.of_kernel.instantiate(), name)
        return tf.cast(of_weight, tf.float32)
