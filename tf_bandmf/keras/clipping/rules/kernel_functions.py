"""Norm rule of layers whose kernel is a function of the weight (weight standardization).

Such a layer is a subclass of a layer of Keras that overrides the property `kernel` alone:

    class StandardizedConv2D(keras.layers.Conv2D):
        @property
        def kernel(self):
            mean, variance = keras.ops.moments(self._kernel, axes=(0, 1, 2), keepdims=True)
            return (self._kernel - mean) * keras.ops.rsqrt(variance + 1e-5)

The layer treats examples as the layer of Keras does. The gradient of the weight is the
gradient of the kernel, pulled back through the function. That takes small operations on
each example's kernel gradient, and no convolution of single examples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.factors.base import Factor, Formed
from tf_bandmf.keras.clipping.independence.map_examples import map_examples
from tf_bandmf.keras.clipping.rules.base import (
    LayerCall,
    PreActivationRule,
    is_plain,
    overridden,
)
from tf_bandmf.keras.clipping.rules.convolution import ConvolutionRule
from tf_bandmf.keras.clipping.rules.dense import DenseRule
from tf_bandmf.keras.compat.keras_objects import kernel_of, tensorflow_value

_RULES = (ConvolutionRule(), DenseRule())


class KernelFunctionRule(PreActivationRule):
    """The rule of subclasses of `Dense` and convolutions that override `kernel` alone."""

    def fits(self, layer: Any) -> bool:
        return _rule_below(layer) is not None and is_plain(layer, type(layer))

    def factors_of(self, call: LayerCall, gradient: tf.Tensor) -> Mapping[int, Factor]:
        layer, rule = call.layer, _rule_below(call.layer)
        weight = kernel_of(layer)
        assert rule is not None
        factors = rule.factors_of(call, gradient)

        def pulled_back(of_unit: tf.Tensor) -> list[tf.Tensor]:
            value = tensorflow_value(weight)
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(value)
                kernel = tf.convert_to_tensor(layer.kernel)
            pulled = tape.gradient(
                kernel,
                value,
                output_gradients=tf.cast(of_unit, kernel.dtype),
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
            return [tf.convert_to_tensor(pulled)]

        # The pull-back is linear: the gradients of a unit's rows are added up before it.
        of_kernels = factors[id(weight)].of_units(call.rows).instantiate()
        name = f"The kernel of layer {layer.name!r} ({type(layer).__name__})"
        (of_weights,) = map_examples(pulled_back, of_kernels, name)
        return {**factors, id(weight): Formed(of_weights)}


def _rule_below(layer: Any) -> PreActivationRule | None:
    """Returns the rule of the Keras class of which a layer overrides `kernel` alone."""
    for rule in _RULES:
        for kind in rule.kinds:
            if isinstance(layer, kind) and kind is not keras.layers.EinsumDense:
                changed = overridden(layer, kind) - {"get_config", "from_config"}
                return rule if changed == {"kernel"} else None
    return None
