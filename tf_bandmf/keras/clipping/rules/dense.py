"""Norm rule of `Dense` and `EinsumDense`."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.factors.base import Factor
from tf_bandmf.keras.clipping.rules.base import (
    LayerCall,
    PreActivationRule,
    of_spread,
)
from tf_bandmf.keras.clipping.rules.products import adapter_of, of_kernel, parsed
from tf_bandmf.keras.compat.keras_objects import kernel_of


class DenseRule(PreActivationRule):
    """The rule of `Dense`, and of `EinsumDense` with any equation with the batch first.

    A layer may have an adapter if the last letter of the kernel is new, see `products`.
    """

    kinds = (keras.layers.Dense, keras.layers.EinsumDense)
    takes_adapters = True
    is_product = True

    def weights(self, layer: Any) -> Sequence[Any]:
        adapter = adapter_of(layer)
        return (kernel_of(layer), layer.bias, *(adapter[:2] if adapter else ()))

    def fits(self, layer: Any) -> bool:
        if not super().fits(layer):
            return False
        inputs = _spelled(layer).split(",")[0]
        # Any rank will do to see whether the equation is understood.
        equation = parsed(_spelled(layer), len(inputs.replace("...", "A")))
        if equation is None:
            return False
        return adapter_of(layer) is None or equation.kernel[-1] not in equation.inputs

    def factors_of(self, call: LayerCall, gradient: tf.Tensor) -> Mapping[int, Factor]:
        layer, inputs = call.layer, call.inputs
        equation = parsed(_spelled(layer), inputs.shape.rank)
        assert equation is not None
        return {
            **of_kernel(
                equation, inputs, gradient, kernel_of(layer), adapter_of(layer)
            ),
            **of_spread(layer.bias, gradient),
        }


def _spelled(layer: Any) -> str:
    """Returns the equation of a layer, without spaces."""
    return getattr(layer, "equation", "...i,io->...o").replace(" ", "")
