"""Norm rule of layers whose kernel is a function of the weight (weight standardization).

Such a layer is a subclass of a layer of Keras that overrides the property `kernel` alone:

    class StandardizedConv2D(keras.layers.Conv2D):
        @property
        def kernel(self):
            mean, variance = keras.ops.moments(self._kernel, axes=(0, 1, 2), keepdims=True)
            return (self._kernel - mean) * keras.ops.rsqrt(variance + 1e-5)

The layer works on examples as the layer of Keras does. The gradient of the weight is that
of the kernel, pulled back through the function: small operations on each example's kernel
gradient, and no convolution of single examples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.factors.base import Factor, Formed
from tf_bandmf.keras.clipping.independence.map_examples import map_examples
from tf_bandmf.keras.clipping.rules.base import (
    LayerCall,
    PreActivationRule,
    overridden,
    owns_only,
)
from tf_bandmf.keras.clipping.rules.convolution import ConvolutionRule
from tf_bandmf.keras.clipping.rules.dense import DenseRule
from tf_bandmf.keras.compat.keras_objects import kernel_of, tensorflow_value

_CONVOLUTIONS = (keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D)


class KernelFunctionRule(PreActivationRule):
    """Subclasses of `Dense` and convolutions that override `kernel` alone."""

    def supports(self, layer: Any, variables: Sequence[Any]) -> bool:
        base = _base_of(layer)
        return (
            base is not None
            and "call" not in vars(layer)
            and not layer.lora_enabled
            and getattr(layer, "quantization_mode", None) is None
            and owns_only(variables, kernel_of(layer), layer.bias)
        )

    def factors_of(self, call: LayerCall, gradient: tf.Tensor) -> Mapping[int, Factor]:
        layer = call.layer
        rule = (
            DenseRule() if _base_of(layer) is keras.layers.Dense else ConvolutionRule()
        )
        result = dict(rule.factors_of(call, gradient))
        of_kernel = result.get(id(kernel_of(layer)))
        if of_kernel is None:
            return result
        weight = tensorflow_value(kernel_of(layer))
        with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
            tape.watch(weight)
            kernel = tf.convert_to_tensor(layer.kernel)

        def pulled_back(of_unit: tf.Tensor) -> list[tf.Tensor]:
            found = tape.gradient(
                kernel,
                weight,
                output_gradients=tf.cast(of_unit, kernel.dtype),
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
            return [tf.convert_to_tensor(found)]

        # The pull-back is linear: the gradients of a unit's rows are added before.
        if call.rows > 1:
            of_kernel = of_kernel.of_units(call.rows)
        name = f"The kernel of layer {layer.name!r} ({type(layer).__name__})"
        given = of_kernel.instantiate()
        found = map_examples(pulled_back, given, name)
        result[id(kernel_of(layer))] = Formed(found[0])
        return result


def _base_of(layer: Any) -> type | None:
    """The class of Keras that a layer's class derives from, changing `kernel` alone."""
    for base in (keras.layers.Dense, *_CONVOLUTIONS):
        if isinstance(layer, base):
            changed = overridden(layer, base) - {"get_config", "from_config"}
            return base if changed == {"kernel"} else None
    return None
