"""Norm rules of convolutions."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.factors.base import (
    Factor,
    Measured,
    Product,
    prefers_forming,
)
from tf_bandmf.keras.clipping.rules.base import LayerCall, PreActivationRule, of_spread
from tf_bandmf.keras.clipping.tensors.batches import (
    elements,
    inner_sizes,
    reshape_examples,
    split_first,
)
from tf_bandmf.keras.compat.keras_objects import kernel_of
from tf_bandmf.keras.compat.vectorizing import vectorized_map
from tf_bandmf.noise.devices import traced_under_xla

# Input patches are extracted if an image has at most `_FEW_POSITIONS` positions, or if
# an output value depends on at most `_FEW_INPUTS` input values.
_FEW_POSITIONS, _FEW_INPUTS = 64, 36
# An example is small if its gradient takes fewer multiplications than this. Launching
# an operation for a small example takes longer than the multiplications.
_MANY = 1 << 24
# A grouped convolution computes the gradients only if the product of the numbers of
# input and output channels is at most this.
_MOST_OF_A_GROUP = 1 << 12


def channels_last(tensor: tf.Tensor, data_format: str) -> tf.Tensor:
    """Moves channels to the end: [B, ..., C]."""
    is_last = data_format == "channels_last"
    return tensor if is_last else keras.ops.moveaxis(tensor, 1, -1)


def _positive(number: Any) -> Any:
    """Returns the maximum of 0 and a number or scalar tensor."""
    return max(number, 0) if isinstance(number, int) else tf.maximum(number, 0)


class ConvolutionRule(PreActivationRule):
    """The rule for convolutions.

    Kernel gradients are products of input patches and output gradients.
    """

    kinds = (keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D)

    def factors(self, call: LayerCall, gradient: tf.Tensor) -> Mapping[int, Factor]:
        layer, kernel = call.layer, kernel_of(call.layer)
        gradient = channels_last(gradient, layer.data_format)
        inputs = channels_last(call.inputs, layer.data_format)
        of_kernel = Convolved(layer, inputs, gradient)
        return {id(kernel): of_kernel, **of_spread(layer.bias, gradient)}


class Convolved(Factor):
    """Gradients of a kernel, from the inputs and output gradients of the convolution.

    Args:
      layer: the convolution.
      inputs: [B, *spatial, C].
      gradient: [B, *output spatial, F].
      rows: number of consecutive examples that form one privacy unit.
    """

    def __init__(
        self, layer: Any, inputs: tf.Tensor, gradient: tf.Tensor, rows: int = 1
    ) -> None:
        self._layer, self._inputs, self._gradient = layer, inputs, gradient
        self._rows = rows
        self._shape = tuple(kernel_of(layer).shape)
        *self._size, self._depth, self._filters = self._shape
        self._terms = elements(gradient.shape[1:-1])

    def of_units(self, rows: int) -> Factor:
        """Returns one gradient per unit, the sum over all of its rows."""
        return Convolved(self._layer, self._inputs, self._gradient, rows)

    def measure(self) -> Measured:
        terms = self._rows * self._terms if self._terms > 0 else None
        if self._layer.groups > 1 or prefers_forming(terms, math.prod(self._shape)):
            return super().measure()
        return self._product().measure()

    def _product(self) -> Product:
        """Returns the gradients as a `Product` with one term per position."""
        kernel = math.prod(self._size) * self._depth * self._layer.groups

        def left(inputs: tf.Tensor) -> tf.Tensor:
            return reshape_examples(self._patches(inputs), self._terms, kernel)

        right = reshape_examples(self._gradient, self._terms, self._filters)
        copied = self._inputs, left
        product = Product(left(self._inputs), right, self._shape, copied=copied)
        return product if self._rows == 1 else product.of_units(self._rows)

    def _patches(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns the input values on which each output position depends.

        The result has the shape [B, *output spatial, size * C]. Its last axis contains
        the C channels for each of the `size` positions of the kernel, in row-major
        order. `tf.image.extract_patches` returns the same, but is several times slower.
        """
        layer, paddings, axes, reached = self._layer, [(0, 0)], [], []
        lengths, counts = (inner_sizes(t)[:-1] for t in (inputs, self._gradient))
        for length, count, size, stride, dilation in zip(
            lengths, counts, self._size, layer.strides, layer.dilation_rate, strict=True
        ):
            reach, last = (size - 1) * dilation, (count - 1) * stride + 1
            missing = last + reach - length
            before = reach if layer.padding == "causal" else _positive(missing) // 2
            paddings.append((before, _positive(missing - before)))
            axes.append(range(0, reach + 1, dilation))
            reached.append(last)
        if any(not isinstance(n, int) or n for pair in paddings for n in pair):
            inputs = tf.pad(inputs, [*paddings, (0, 0)])
        starts = list(itertools.product(*axes))
        # If all strides are 1, `tf.slice` takes half as many operations as indexing.
        if set(layer.strides) == {1}:
            sizes = tf.stack([-1, *reached, -1])
            slices = [tf.slice(inputs, [0, *each, 0], sizes) for each in starts]
        else:
            ends = [map(operator.add, each, reached) for each in starts]
            parts = [map(slice, *pair, layer.strides) for pair in zip(starts, ends)]
            slices = [inputs[(slice(None), *part)] for part in parts]
        return slices[0] if len(slices) == 1 else tf.concat(slices, axis=-1)

    def instantiate(self) -> tf.Tensor:
        """Computes the gradients, `[B, *shape]`, by the fastest of three methods.

        The methods are a sum over input patches, one grouped convolution for all
        examples, and one convolution per unit.
        """
        layer, groups = self._layer, self._layer.groups
        places = self._terms * math.prod(layer.strides)
        multiplications = self._terms * math.prod(self._shape)
        is_small = self._rows == 1 and 0 <= multiplications < _MANY
        of_one_output = math.prod(self._size) * self._depth
        are_few = places <= _FEW_POSITIONS or of_one_output <= _FEW_INPUTS
        if (
            traced_under_xla()
            or tf.config.list_logical_devices("GPU")
            or groups > 1
            # For a kernel with one position, the patches are the inputs themselves.
            or math.prod(self._size) == 1
            or (is_small and are_few)
            # TensorFlow's Conv2D gradient supports only equal strides and no dilation.
            or not isinstance(layer, keras.layers.Conv2D)
            or len(set(layer.strides)) > 1
            or set(layer.dilation_rate) != {1}
        ):
            product = self._product()
            return self._by_channels(product) if groups > 1 else product.instantiate()
        is_thin = self._depth * self._filters <= _MOST_OF_A_GROUP
        if is_small and is_thin and groups_have_gradients():
            return self._in_groups()
        return self._one_by_one()

    def _in_groups(self) -> tf.Tensor:
        """Computes all gradients in one grouped convolution, one group per example."""
        examples = tf.shape(self._inputs)[0]

        def side_by_side(tensor: tf.Tensor) -> tf.Tensor:
            *spatial, channels = tensor.shape[1:]
            tensor = tf.transpose(tf.cast(tensor, tf.float32), [1, 2, 0, 3])
            return tf.reshape(tensor, [1, *spatial, examples * channels])

        formed = self._backpropagated(
            side_by_side(self._inputs),
            side_by_side(self._gradient),
            examples * self._filters,
        )
        formed = tf.reshape(formed, [*self._size, self._depth, examples, self._filters])
        return tf.transpose(formed, [3, 0, 1, 2, 4])

    def _one_by_one(self) -> tf.Tensor:
        """Computes the gradients in a loop over units, with TensorFlow's gradient op.

        No input patches are extracted. The loop takes about as long as the gradient of
        the whole batch, plus a tenth of a millisecond per unit.
        """
        inputs, gradient = (
            split_first(tf.cast(tensor, tf.float32), -1, self._rows)
            for tensor in (self._inputs, self._gradient)
        )
        formed = vectorized_map(
            lambda unit: self._backpropagated(unit[0], unit[1], self._filters),
            (inputs, gradient),
        )
        return reshape_examples(formed, *self._shape)

    def _backpropagated(
        self, inputs: tf.Tensor, gradient: tf.Tensor, filters: Any
    ) -> tf.Tensor:
        return tf.raw_ops.Conv2DBackpropFilter(
            input=inputs,
            filter_sizes=[*self._size, self._depth, filters],
            out_backprop=gradient,
            strides=[1, *self._layer.strides, 1],
            padding=self._layer.padding.upper(),
        )

    def _by_channels(self, product: Product) -> tf.Tensor:
        """Computes kernel gradients of a convolution with groups of channels."""
        groups = self._layer.groups
        left, right = (tf.cast(t, tf.float32) for t in (product.left, product.right))
        left = reshape_examples(left, -1, math.prod(self._size), groups, self._depth)
        right = reshape_examples(right, -1, groups, self._filters // groups)
        formed = tf.einsum("btpgd,btgf->bpdgf", left, right)
        return reshape_examples(formed, *self._shape)


@functools.cache
def groups_have_gradients() -> bool:
    """Returns whether this CPU can compute gradients of grouped convolutions."""
    with tf.init_scope(), tf.device("CPU:0"):
        try:
            tf.raw_ops.Conv2DBackpropFilter(
                input=tf.zeros([1, 3, 3, 4]),
                filter_sizes=[3, 3, 2, 6],
                out_backprop=tf.zeros([1, 3, 3, 6]),
                strides=[1, 1, 1, 1],
                padding="SAME",
            )
        except tf.errors.OpError:
            return False
    return True
