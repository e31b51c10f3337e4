"""Per-example gradients of einsum kernels, stored as products.

The equation `inputs,kernel->outputs` of an einsum has one letter per axis. A letter is
contracted (in inputs and kernel), new (in kernel and outputs), a position (in inputs
and outputs) or a group (in all three). The gradient of the kernel is an einsum of the
inputs and the output gradients, for any order of the letters. It is stored as a
`Product` of these two tensors, unless there is a group, or a letter that is only in the
inputs. In these cases, the gradient itself is stored. A kernel with groups is small
compared with its inputs.
"""

from __future__ import annotations

import math
import string
from typing import NamedTuple

import tensorflow as tf

from tf_bandmf.keras.clipping.factors.base import (
    Factor,
    Instantiated,
    Product,
)
from tf_bandmf.keras.clipping.tensors.batches import elements, reshape_examples


class Equation(NamedTuple):
    """An einsum equation `inputs,kernel->outputs` with one letter per axis."""

    inputs: str
    kernel: str
    outputs: str


def parsed(equation: str, rank: int) -> Equation | None:
    """Parses an einsum for inputs of a given rank; None if it is not supported."""
    inputs, kernel, outputs = equation.replace("->", ",").split(",")
    spare = [letter for letter in string.ascii_uppercase if letter not in equation]
    filled = "".join(spare[: rank - len(inputs.replace("...", ""))])
    if "..." in inputs:
        inputs, outputs = (part.replace("...", filled) for part in (inputs, outputs))
    parts = Equation(inputs, kernel, outputs)
    # Keras has checked that no letter occurs only in the kernel or only in the outputs.
    is_understood = (
        len(inputs) == rank
        and all(len(set(part)) == len(part) for part in parts)
        # The batch letter comes first in inputs and outputs, and is not in the kernel.
        and inputs[0] == outputs[:1]
        and inputs[0] not in kernel
    )
    return parts if is_understood else None


def product(
    equation: Equation, inputs: tf.Tensor, gradient: tf.Tensor, shape: tuple[int, ...]
) -> Factor:
    """Returns the per-example gradients of the kernel of an einsum.

    Args:
      equation: the einsum.
      inputs: [B, ...].
      gradient: gradient for the outputs, [B, ...].
      shape: shape of the kernel.
    """
    letters, kernel, outputs = equation
    contracted = [c for c in kernel if c in letters and c not in outputs]
    new = [c for c in kernel if c not in letters]
    positions = [c for c in letters[1:] if c in outputs and c not in kernel]
    if len(letters) > 1 + len(positions) + len(contracted):
        # The equation has a group, or a letter that only the inputs have.
        inputs, gradient = tf.cast(inputs, tf.float32), tf.cast(gradient, tf.float32)
        of_kernels = f"{letters},{outputs}->{letters[0]}{kernel}"
        return Instantiated(tf.einsum(of_kernels, inputs, gradient))
    size = dict(zip(kernel, shape, strict=True))

    def arranged(tensor: tf.Tensor, have: str, last: list[str]) -> tf.Tensor:
        order = [have.index(c) for c in [letters[0], *positions, *last]]
        static = dict(zip(have, tensor.shape, strict=True))
        if order != sorted(order):
            tensor = tf.transpose(tensor, order)
        terms = [elements([static[c] for c in positions])] if positions else []
        return reshape_examples(tensor, *terms, math.prod(size[c] for c in last))

    order = tuple([*contracted, *new].index(c) for c in kernel)
    return Product(
        arranged(inputs, letters, contracted),
        arranged(gradient, outputs, new),
        shape,
        () if order == tuple(sorted(order)) else order,
    )
