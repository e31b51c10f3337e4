"""Norm rules of convolutions."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.factors import norms
from tf_bandmf.keras.clipping.factors.base import (
    Factor,
    Layout,
    Measured,
    Product,
    prefers_forming,
)
from tf_bandmf.keras.clipping.rules.base import (
    LayerCall,
    PreActivationRule,
    kernel_shape,
    of_spread,
)
from tf_bandmf.keras.clipping.tensors.batches import elements, reshape_examples
from tf_bandmf.keras.compat.keras_objects import kernel_of

_FEW_CHANNELS = 4
# With up to `_FEW_POSITIONS`, patches are small; with up to `_SOME_POSITIONS`, they are
# not much larger than the gradients.
_FEW_POSITIONS, _SOME_POSITIONS = 64, 256
# From this many multiplications on, computing the gradient of an example takes longer
# than launching the operation.
_MANY = 1 << 24
# Gradients are computed in groups up to this product of input and output channels.
_MOST_OF_A_GROUP = 1 << 12


def channels_last(tensor: tf.Tensor, data_format: str) -> tf.Tensor:
    """Moves channels to the end: [B, ..., C]."""
    if data_format == "channels_last":
        return tensor
    rank = tensor.shape.rank
    return tf.transpose(tensor, [0, *range(2, rank), 1])


def _spatial(tensor: tf.Tensor) -> list[Any]:
    """Returns the spatial lengths of [B, *spatial, C], as numbers or scalar tensors."""
    return [
        tf.shape(tensor)[axis] if length is None else length
        for axis, length in enumerate(tensor.shape[1:-1], start=1)
    ]


def _padding(mode: str, reach: int, missing: Any) -> tuple[Any, Any]:
    """Returns a layer's padding before and after one spatial dimension."""
    if mode != "same":
        return (reach if mode == "causal" else 0), 0
    total = max(missing, 0) if isinstance(missing, int) else tf.maximum(missing, 0)
    return total // 2, total - total // 2


class ConvolutionRule(PreActivationRule):
    """The rule of convolutions: products of input patches and output gradients."""

    kinds = (keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D)

    def factors_of(self, call: LayerCall, gradient: tf.Tensor) -> Mapping[int, Factor]:
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
      rows: number of the B rows that form one unit.
    """

    def __init__(
        self, layer: Any, inputs: tf.Tensor, gradient: tf.Tensor, rows: int = 1
    ) -> None:
        self._layer, self._inputs, self._gradient = layer, inputs, gradient
        self._rows = rows
        self._shape = kernel_shape(kernel_of(layer))
        *self._size, self._depth, self._filters = self._shape
        self._positions = math.prod(self._size)
        self._terms = elements(gradient.shape[1:-1])

    def of_units(self, rows: int) -> Factor:
        """See the base class: the rows of a unit are added like more positions."""
        return Convolved(self._layer, self._inputs, self._gradient, rows)

    def measure(self) -> Measured:
        terms = self._rows * self._terms if self._terms > 0 else None
        if self._layer.groups > 1 or prefers_forming(terms, math.prod(self._shape)):
            return super().measure()

        def left(inputs: tf.Tensor) -> tf.Tensor:
            patches = self._patches(inputs)
            return reshape_examples(patches, self._terms, self._positions * self._depth)

        right = reshape_examples(self._gradient, self._terms, self._filters)
        plain, inputs = Layout.plain(self._shape), self._inputs
        product = Product(left(inputs), right, plain, (inputs, left))
        return (product if self._rows == 1 else product.of_units(self._rows)).measure()

    def _patches(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns the inputs of each output position: [B, *output spatial, positions * C].

        It takes one strided slice for each position of the kernel, in row-major order:
        `tf.image.extract_patches` gives the same, but several times slower.
        """
        layer, counts = self._layer, _spatial(self._gradient)
        steps = list(zip(layer.strides, layer.dilation_rate, strict=True))
        paddings: list[tuple[Any, Any]] = [(0, 0)]
        for length, kernel, count, (stride, dilation) in zip(
            _spatial(inputs), self._size, counts, steps, strict=True
        ):
            reach = (kernel - 1) * dilation
            missing = (count - 1) * stride + 1 + reach - length
            paddings.append(_padding(layer.padding, reach, missing))
        if any(not isinstance(n, int) or n for pair in paddings for n in pair):
            inputs = tf.pad(inputs, [*paddings, (0, 0)])
        slices = []
        for position in itertools.product(*map(range, self._size)):
            index: list[Any] = [slice(None)]
            for offset, count, (stride, dilation) in zip(
                position, counts, steps, strict=True
            ):
                start = offset * dilation
                index.append(slice(start, start + (count - 1) * stride + 1, stride))
            slices.append(inputs[tuple(index)])
        return slices[0] if len(slices) == 1 else tf.concat(slices, axis=-1)

    def instantiate(self) -> tf.Tensor:
        """See the base class: uses the fastest of three ways (benchmarks/README.md)."""
        # Count the input positions that patches span: strided slices are slow.
        places = self._terms * math.prod(self._layer.strides)
        multiplications = self._terms * math.prod(self._shape)
        is_small = self._rows == 1 and 0 <= multiplications < _MANY
        if (
            norms.in_xla()
            or tf.config.list_logical_devices("GPU")
            or self._positions == 1  # patches are the inputs
            or not self._has_two_dimensional_form()
            or self._layer.groups > 1
            or (is_small and (self._depth <= _FEW_CHANNELS or places <= _FEW_POSITIONS))
        ):
            return self.from_patches()
        is_thin = self._depth * self._filters <= _MOST_OF_A_GROUP
        if is_small and is_thin and groups_have_gradients():
            return self.in_groups()
        if is_small and self._terms == places <= _SOME_POSITIONS:
            return self.from_patches()
        return self.one_by_one()

    def _has_two_dimensional_form(self) -> bool:
        """Returns whether TensorFlow's Conv2D can pad and stride as the layer does."""
        layer = self._layer
        return (
            isinstance(layer, keras.layers.Conv2D)
            and layer.padding in ("same", "valid")
            and len(set(layer.strides)) == 1
            and set(layer.dilation_rate) == {1}
        )

    def in_groups(self) -> tf.Tensor:
        """Computes all gradients in one grouped convolution, one group per example."""
        examples = tf.shape(self._inputs)[0]

        def side_by_side(tensor: tf.Tensor, channels: int) -> tf.Tensor:
            *spatial, _ = tensor.shape[1:]
            tensor = tf.transpose(tf.cast(tensor, tf.float32), [1, 2, 0, 3])
            return tf.reshape(tensor, [1, *spatial, examples * channels])

        formed = self._backpropagated(
            side_by_side(self._inputs, self._depth),
            side_by_side(self._gradient, self._filters),
            examples * self._filters,
        )
        formed = tf.reshape(formed, [*self._size, self._depth, examples, self._filters])
        return tf.transpose(formed, [3, 0, 1, 2, 4])

    def one_by_one(self) -> tf.Tensor:
        """Loops over units, and computes each gradient with TensorFlow's own operation.

        This needs no patches. The loop takes about as long as the gradient of the whole
        batch, plus a tenth of a millisecond per unit.
        """
        # The operation trusts static shapes, and would read out of bounds if they were
        # wrong.
        inputs, gradient = (
            reshape_examples(tensor, *tensor.shape[1:])
            if tensor.shape[1:].is_fully_defined()
            else tensor
            for tensor in (
                tf.cast(self._inputs, tf.float32),
                tf.cast(self._gradient, tf.float32),
            )
        )
        units, rows = tf.shape(inputs)[0] // self._rows, self._rows

        # A slice of the first axis is a view. `map_fn` would copy it, or need twice as
        # many operations, which TensorFlow must optimize before the first step.
        def of_unit(unit: tf.Tensor, formed: tf.TensorArray) -> Any:
            part = slice(unit * rows, unit * rows + rows)
            gradients = self._backpropagated(
                inputs[part], gradient[part], self._filters
            )
            return unit + 1, formed.write(unit, gradients)

        formed = tf.TensorArray(tf.float32, units, element_shape=self._shape)
        _, formed = tf.while_loop(
            lambda unit, _: unit < units, of_unit, (tf.constant(0), formed)
        )
        return formed.stack()

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

    def from_patches(self) -> tf.Tensor:
        """Computes the gradient of each unit as a matrix product of its patches."""
        inputs, gradient = norms.kept(self._inputs), norms.kept(self._gradient)
        batch = tf.shape(gradient)[0] // self._rows
        terms = self._terms * (self._rows if self._terms > 0 else 1)
        patches, groups = self._patches(inputs), self._layer.groups
        if groups > 1:
            sizes = self._positions, groups, self._depth
            patches = tf.reshape(patches, [batch, terms, *sizes])
            shape = batch, terms, groups, self._filters // groups
            gradient = tf.cast(tf.reshape(gradient, shape), tf.float32)
            patches = tf.cast(patches, tf.float32)
            formed = tf.einsum("btpgd,btgf->bpdgf", patches, gradient)
        else:
            left = tf.reshape(patches, [batch, terms, self._positions * self._depth])
            right = tf.reshape(gradient, [batch, terms, self._filters])
            formed = norms.formed(left, right)
        return tf.reshape(formed, [batch, *self._shape])


@functools.cache
def groups_have_gradients() -> bool:
    """Returns whether this CPU has gradients of grouped kernels (from oneDNN)."""
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
