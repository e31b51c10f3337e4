"""Norm rules of `Dense` and `EinsumDense`."""

import math
import string
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.factors.base import Factor, Layout, Product
from tf_bandmf.keras.clipping.rules.adapters import Adapter, adapter_of
from tf_bandmf.keras.clipping.rules.base import (
    LayerCall,
    PreActivationRule,
    is_plain,
    kernel_shape,
    owns_only,
)
from tf_bandmf.keras.clipping.tensors.batches import elements, reshape_examples
from tf_bandmf.keras.compat.keras_objects import kernel_of


class _Equation(NamedTuple):
    """An einsum equation `inputs,kernel->outputs`, one letter per dimension."""

    inputs: str
    kernel: str
    outputs: str


def _parse(equation: str, input_rank: int) -> _Equation | None:
    """Expands an equation for inputs of a given rank; None if not understood."""
    left, outputs = equation.split("->")
    inputs, kernel = left.split(",")
    if "..." in kernel:
        return None
    if "..." in inputs:
        used = set(inputs + kernel + outputs)
        spare = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in used]
        filled = "".join(spare[: input_rank - len(inputs.replace("...", ""))])
        inputs = inputs.replace("...", filled)
        outputs = outputs.replace("...", filled)
    if "." in inputs + outputs or len(inputs) != input_rank:
        return None
    parts = (inputs, kernel, outputs)
    if any(len(set(part)) != len(part) for part in parts):
        return None
    known = set(inputs) | set(kernel)
    if not set(outputs) <= known or not set(kernel) <= set(inputs) | set(outputs):
        return None
    # The batch comes first, in the inputs and outputs and not in the kernel.
    if inputs[0] != outputs[0] or inputs[0] in kernel:
        return None
    return _Equation(*parts)


class DenseRule(PreActivationRule):
    """`Dense`, and `EinsumDense` of any equation with the batch first.

    A letter of the equation is one of: contracted (inputs and kernel), new (kernel
    and outputs), a position (inputs and outputs) or a group (all three). An adapter is
    understood if the last letter of the kernel is new.
    """

    is_product = True

    def supports(self, layer: Any, variables: Sequence[Any]) -> bool:
        kinds = keras.layers.Dense, keras.layers.EinsumDense
        if not is_plain(layer, *kinds, adapted=True):
            return False
        adapter = adapter_of(layer)
        parts = adapter[:2] if adapter else ()
        if not owns_only(variables, kernel_of(layer), layer.bias, *parts):
            return False
        inputs = _spelled(layer).split(",")[0]
        # Any rank will do to see whether the equation is understood.
        equation = _parse(_spelled(layer), len(inputs.replace("...", "A")))
        if equation is None:
            return False
        return adapter is None or equation.kernel[-1] not in equation.inputs

    def factors_of(self, call: LayerCall, gradient: tf.Tensor) -> Mapping[int, Factor]:
        layer = call.layer
        equation = _parse(_spelled(layer), call.inputs.shape.rank)
        assert equation is not None
        result: dict[int, Factor] = {
            id(kernel_of(layer)): _product(
                equation, call.inputs, gradient, kernel_shape(kernel_of(layer))
            )
        }
        adapter = adapter_of(layer)
        if adapter is not None:
            result.update(_of_adapter(equation, adapter, call.inputs, gradient))
        return {**result, **self.of_bias(layer, gradient)}


def _spelled(layer: Any) -> str:
    """The equation of a layer."""
    return getattr(layer, "equation", "...i,io->...o").replace(" ", "")


def _of_adapter(
    equation: _Equation, adapter: Adapter, inputs: tf.Tensor, gradient: tf.Tensor
) -> dict[int, Factor]:
    """Factors of A and B: the rank takes the place of the kernel's last letter."""
    letters, kernel, outputs = equation
    last = kernel[-1]
    used = set(letters + kernel + outputs)
    rank = next(c for c in string.ascii_letters if c not in used)
    down, up = adapter.values()
    inputs, gradient = tf.cast(inputs, tf.float32), tf.cast(gradient, tf.float32)
    between = outputs.replace(last, rank)
    of_down = _Equation(letters, kernel[:-1] + rank, between)
    of_up = _Equation(between, rank + last, outputs)
    pulled = tf.einsum(f"{outputs},{rank}{last}->{between}", gradient, up)
    pushed = tf.einsum(f"{letters},{of_down.kernel}->{between}", inputs, down)
    return {
        id(adapter.down): _product(of_down, inputs, pulled, kernel_shape(adapter.down)),
        id(adapter.up): _product(of_up, pushed, gradient, kernel_shape(adapter.up)),
    }


def _product(
    equation: _Equation, inputs: tf.Tensor, gradient: tf.Tensor, shape: tuple[int, ...]
) -> Product:
    """Brings inputs and output gradients of an einsum to the form of `Product`."""
    letters, kernel, outputs = equation
    # A letter that only the inputs have is summed out.
    lonely = [i for i, c in enumerate(letters) if c not in kernel and c not in outputs]
    if lonely:
        inputs = tf.reduce_sum(inputs, axis=lonely)
        letters = "".join(c for i, c in enumerate(letters) if i not in lonely)
    batch = letters[0]
    groups = [c for c in kernel if c in letters and c in outputs]
    contracted = [c for c in kernel if c in letters and c not in outputs]
    new = [c for c in kernel if c not in letters]
    positions = [c for c in letters[1:] if c in outputs and c not in kernel]
    size = dict(zip(kernel, shape, strict=True))

    def arrange(tensor: tf.Tensor, have: str, last: list[str]) -> tf.Tensor:
        order = [have.index(c) for c in [batch, *groups, *positions, *last]]
        static = dict(zip(have, tensor.shape, strict=True))
        if order != sorted(order):
            tensor = tf.transpose(tensor, order)
        middle = [math.prod(size[c] for c in groups)] if groups else []
        terms = elements([static[c] for c in positions])
        final = math.prod(size[c] for c in last)
        return reshape_examples(tensor, *middle, terms, final)

    order = [*groups, *contracted, *new]
    layout = Layout(
        split=tuple(size[c] for c in order),
        order=tuple(order.index(c) for c in kernel),
        shape=shape,
    )
    left = arrange(inputs, letters, contracted)
    right = arrange(gradient, outputs, new)
    return Product(left, right, layout)
