"""Norm rules for `Dense`, `EinsumDense` and the bias of KerasHub's `MaskedLMHead`.

A kernel with an adapter (LoRA) is W + s A B with a frozen W and a constant s (Hu et
al., 2021, arXiv:2106.09685). For an input x, the output is x W + s (x A) B. Let g be
the gradient of the loss with respect to the output. The gradient of A is the sum of
outer products of x and s g Bᵀ. The gradient of B is the sum of outer products of s x A
and g. No per-example tensor is as large as W.
"""

import string
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.factors.base import Factor
from tf_bandmf.keras.clipping.rules.base import LayerCall, PreActivationRule, of_spread
from tf_bandmf.keras.clipping.rules.products import Equation, parsed, product
from tf_bandmf.keras.compat.keras_objects import bias_of, kernel_of, tensorflow_value


class DenseRule(PreActivationRule):
    """The rule for `Dense`, and for `EinsumDense` with the batch as the first axis.

    LoRA adapters are supported if the kernel's last letter in the einsum equation is
    not among the letters of the inputs.
    """

    kinds = (keras.layers.Dense, keras.layers.EinsumDense)
    takes_adapters = True
    is_product = True

    def weights(self, layer: Any) -> Sequence[Any]:
        return (*super().weights(layer), *_adapter_of(layer))

    def fits(self, layer: Any) -> bool:
        if not super().fits(layer):
            return False
        inputs = _spelled(layer).split(",")[0]
        # "..." counts as one axis here. Whether the equation can be parsed does not
        # depend on the number of axes.
        equation = parsed(_spelled(layer), len(inputs.replace("...", "A")))
        if equation is None:
            return False
        return not _adapter_of(layer) or equation.kernel[-1] not in equation.inputs

    def factors(self, call: LayerCall, gradient: tf.Tensor) -> Mapping[int, Factor]:
        layer, inputs, kernel = call.layer, call.inputs, kernel_of(call.layer)
        equation = parsed(_spelled(layer), inputs.shape.rank)
        assert equation is not None
        factors: dict[int, Factor] = {
            id(kernel): product(equation, inputs, gradient, tuple(kernel.shape)),
            **of_spread(layer.bias, gradient),
        }
        if _adapter_of(layer):
            factors.update(_of_adapter(layer, equation, inputs, gradient))
        return factors


class MaskedLMHeadRule(PreActivationRule):
    """The rule for the bias of KerasHub's `MaskedLMHead`.

    The inner layers have other rules. The class is recognized by its full name, so
    KerasHub is never imported. Privacy does not depend on whether the layer computes what
    the rule assumes, since clipping uses the norm of the gradients that are actually
    summed.
    """

    kinds = ("keras_hub.src.layers.modeling.masked_lm_head.MaskedLMHead",)
    opens = True

    def weights(self, layer: Any) -> Sequence[Any]:
        return (bias_of(layer),)

    def factors(self, call: LayerCall, gradient: tf.Tensor) -> Mapping[int, Factor]:
        return of_spread(bias_of(call.layer), gradient)


def _spelled(layer: Any) -> str:
    """Returns the einsum equation of a layer, without spaces."""
    return getattr(layer, "equation", "...i,io->...o").replace(" ", "")


def _adapter_of(layer: Any) -> tuple[Any, ...]:
    """Returns the variables A and B of a layer's LoRA adapter; () if it has none.

    With rank r and O outputs, their shapes are [..., r] and [r, O].
    """
    if not getattr(layer, "lora_enabled", False):
        return ()
    return layer.lora_kernel_a, layer.lora_kernel_b


def _of_adapter(
    layer: Any, equation: Equation, inputs: tf.Tensor, gradient: tf.Tensor
) -> dict[int, Factor]:
    """Returns the factors of a LoRA adapter's variables A and B, by their `id`."""
    # In A, a letter for the rank takes the place of the kernel's last letter.
    letters, kernel, outputs = equation
    rank = next(c for c in string.ascii_letters if c not in "".join(equation))
    last = kernel[-1]
    between, of_down = outputs.replace(last, rank), kernel[:-1] + rank
    scale = layer.lora_alpha / layer.lora_rank
    down, up = _adapter_of(layer)
    # The gradient of A (`down`) depends on B (`up`), and the gradient of B on A.
    scaled_down, scaled_up = (
        scale * tf.cast(tf.convert_to_tensor(tensorflow_value(v)), tf.float32)
        for v in (down, up)
    )
    inputs, gradient = tf.cast(inputs, tf.float32), tf.cast(gradient, tf.float32)
    pulled = tf.einsum(f"{outputs},{rank}{last}->{between}", gradient, scaled_up)
    pushed = tf.einsum(f"{letters},{of_down}->{between}", inputs, scaled_down)
    of_one = Equation(letters, of_down, between)
    of_other = Equation(between, rank + last, outputs)
    return {
        id(down): product(of_one, inputs, pulled, tuple(down.shape)),
        id(up): product(of_other, pushed, gradient, tuple(up.shape)),
    }
