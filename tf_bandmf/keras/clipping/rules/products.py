"""Per-example gradients of kernels that inputs are multiplied with, as products.

The equation `inputs,kernel->outputs` of an einsum has one letter for each dimension. A
letter is contracted (in inputs and kernel), new (in kernel and outputs), a position (in
inputs and outputs) or a group (in all three). The gradient of the kernel is an einsum of
inputs and output gradients alone, so that these two may change places.

An adapted kernel (LoRA) is W + s A B with a frozen W (Hu et al., 2021, arXiv:2106.09685),
so that x (W + s A B) = x W + s (x A) B: two products in a row. With g the gradient of the
output, the gradient of A is the sum of outer products of x and s g Bᵀ, and that of B the
sum of outer products of s x A and g. Nothing of the size of W is made for single examples.
"""

from __future__ import annotations

import math
import string
from typing import Any, NamedTuple

import tensorflow as tf

from tf_bandmf.keras.clipping.factors.base import Factor, Layout, Product
from tf_bandmf.keras.clipping.rules.base import kernel_shape
from tf_bandmf.keras.clipping.tensors.batches import elements, reshape_examples
from tf_bandmf.keras.compat.keras_objects import tensorflow_value


class Equation(NamedTuple):
    """An einsum equation `inputs,kernel->outputs`, one letter per dimension."""

    inputs: str
    kernel: str
    outputs: str


def parsed(equation: str, rank: int) -> Equation | None:
    """Expands an equation for inputs of a given rank; None if it is not understood."""
    inputs, kernel, outputs = equation.replace("->", ",").split(",")
    spare = [letter for letter in string.ascii_uppercase if letter not in equation]
    filled = "".join(spare[: rank - len(inputs.replace("...", ""))])
    if "..." in inputs:
        inputs, outputs = (part.replace("...", filled) for part in (inputs, outputs))
    parts = Equation(inputs, kernel, outputs)
    is_understood = (
        "." not in inputs + kernel + outputs
        and len(inputs) == rank
        and all(len(set(part)) == len(part) for part in parts)
        and set(outputs) <= set(inputs + kernel)
        and set(kernel) <= set(inputs + outputs)
        # The batch comes first, in the inputs and outputs and not in the kernel.
        and inputs[0] == outputs[:1]
        and inputs[0] not in kernel
    )
    return parts if is_understood else None


class Adapter(NamedTuple):
    """The adapter of a layer.

    Attributes:
      down: the Keras variable A, [..., r].
      up: the Keras variable B, [r, O].
      scale: s.
    """

    down: Any
    up: Any
    scale: float

    def values(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns s A and s B, float32; each appears in the gradient of the other one."""
        down, up = (
            tf.cast(tf.convert_to_tensor(tensorflow_value(v)), tf.float32)
            for v in (self.down, self.up)
        )
        return self.scale * down, self.scale * up


def adapter_of(layer: Any, prefix: str = "lora_kernel") -> Adapter | None:
    """Returns the adapter of a layer of Keras, or None.

    Args:
      layer: a built layer.
      prefix: what the names of the adapter's two variables begin with.
    """
    if not getattr(layer, "lora_enabled", False):
        return None
    scale = layer.lora_alpha / layer.lora_rank
    return Adapter(getattr(layer, f"{prefix}_a"), getattr(layer, f"{prefix}_b"), scale)


def of_kernel(
    equation: Equation,
    inputs: tf.Tensor,
    gradient: tf.Tensor,
    kernel: Any,
    adapter: Adapter | None = None,
) -> dict[int, Factor]:
    """Returns factors of a kernel and of its adapter, by `id` of the Keras variable.

    Args:
      equation: how inputs and kernel were multiplied.
      inputs: [B, ...].
      gradient: gradient for the outputs, [B, ...].
      kernel: the Keras variable.
      adapter: None; or the kernel's adapter, whose last letter in the kernel must be new.
    """
    factors: dict[int, Factor] = {
        id(kernel): product(equation, inputs, gradient, kernel_shape(kernel))
    }
    if adapter is None:
        return factors
    # The adapter's rank r takes the place of the kernel's last letter.
    letters, weights, outputs = equation
    rank = next(c for c in string.ascii_letters if c not in "".join(equation))
    last = weights[-1]
    between, of_down = outputs.replace(last, rank), weights[:-1] + rank
    down, up = adapter.values()
    inputs, gradient = tf.cast(inputs, tf.float32), tf.cast(gradient, tf.float32)
    pulled = tf.einsum(f"{outputs},{rank}{last}->{between}", gradient, up)
    pushed = tf.einsum(f"{letters},{of_down}->{between}", inputs, down)
    halves = (
        (adapter.down, Equation(letters, of_down, between), inputs, pulled),
        (adapter.up, Equation(between, rank + last, outputs), pushed, gradient),
    )
    for half, one, left, right in halves:
        factors[id(half)] = product(one, left, right, kernel_shape(half))
    return factors


def product(
    equation: Equation,
    inputs: tf.Tensor,
    gradient: tf.Tensor,
    sizes: tuple[int, ...],
    shape: tuple[int, ...] | None = None,
) -> Product:
    """Brings inputs and output gradients of an einsum to the form of `Product`.

    Args:
      equation: the einsum.
      inputs: [B, ...].
      gradient: gradient for the outputs, [B, ...].
      sizes: the sizes of the kernel's letters.
      shape: the kernel's shape, if it does not have one dimension for each letter.
    """
    letters, kernel, outputs = equation
    # A letter that only the inputs have is summed out.
    lonely = [i for i, c in enumerate(letters) if c not in kernel + outputs]
    if lonely:
        inputs = tf.reduce_sum(inputs, axis=lonely)
        letters = "".join(c for c in letters if c in kernel + outputs)
    groups = [c for c in kernel if c in letters and c in outputs]
    contracted = [c for c in kernel if c in letters and c not in outputs]
    new = [c for c in kernel if c not in letters]
    positions = [c for c in letters[1:] if c in outputs and c not in kernel]
    size = dict(zip(kernel, sizes, strict=True))

    def arranged(tensor: tf.Tensor, have: str, last: list[str]) -> tf.Tensor:
        order = [have.index(c) for c in [letters[0], *groups, *positions, *last]]
        static = dict(zip(have, tensor.shape, strict=True))
        if order != sorted(order):
            tensor = tf.transpose(tensor, order)
        middle = [math.prod(size[c] for c in groups)] if groups else []
        terms = elements([static[c] for c in positions])
        return reshape_examples(
            tensor, *middle, terms, math.prod(size[c] for c in last)
        )

    order = [*groups, *contracted, *new]
    layout = Layout(
        split=tuple(size[c] for c in order),
        order=tuple(order.index(c) for c in kernel),
        shape=shape or sizes,
    )
    return Product(
        arranged(inputs, letters, contracted), arranged(gradient, outputs, new), layout
    )
