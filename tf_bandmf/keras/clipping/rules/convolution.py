"""Norm rules of convolutions."""

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_bandmf.keras.clipping.factors import norms
from tf_bandmf.keras.clipping.factors.base import (
    Factor,
    Formed,
    Instantiated,
    Layout,
    Product,
    prefers_forming,
)
from tf_bandmf.keras.clipping.factors.norms import in_xla
from tf_bandmf.keras.clipping.rules.base import (
    LayerCall,
    PreActivationRule,
    is_plain,
    kernel_shape,
    owns_only,
)
from tf_bandmf.keras.clipping.tensors.batches import elements, reshape_examples
from tf_bandmf.keras.compat.keras_objects import kernel_of

_FEW_CHANNELS = 4
# Positions of which patches are small, or not much larger than what is formed of them.
_FEW_POSITIONS, _SOME_POSITIONS = 64, 256
# Multiplications of an example that take longer than to begin with it.
_MANY = 1 << 24
# Channels of the inputs times those of the outputs.
_MOST_OF_A_GROUP = 1 << 12


def channels_last(tensor: tf.Tensor, data_format: str) -> tf.Tensor:
    """Moves channels to the end: [B, ..., C]."""
    if data_format == "channels_last":
        return tensor
    rank = tensor.shape.rank
    return tf.transpose(tensor, [0, *range(2, rank), 1])


def _padded(
    inputs: tf.Tensor, layer: Any, size: Sequence[int], outputs: Sequence[Any]
) -> tf.Tensor:
    """Pads inputs [B, *spatial, C] as the layer's padding mode does."""
    paddings: list[list[Any]] = [[0, 0]]
    shape = tf.shape(inputs)
    for axis, kernel in enumerate(size):
        reach = (kernel - 1) * layer.dilation_rate[axis]
        before: Any = 0
        after: Any = 0
        if layer.padding == "causal":
            before = reach
        elif layer.padding == "same":
            length = inputs.shape[axis + 1]
            needed = (outputs[axis] - 1) * layer.strides[axis] + 1 + reach
            if length is None or not isinstance(outputs[axis], int):
                total = tf.maximum(needed - shape[axis + 1], 0)
            else:
                total = max(needed - length, 0)
            before = total // 2
            after = total - before
        paddings.append([before, after])
    paddings.append([0, 0])
    if all(isinstance(pair[0], int) and pair == [0, 0] for pair in paddings):
        return inputs
    return tf.pad(inputs, paddings)


def shifted_inputs(
    layer: Any, inputs: tf.Tensor, outputs: tf.Tensor, size: Sequence[int]
) -> list[tf.Tensor]:
    """Returns, for each kernel position, the inputs that it meets.

    One strided slice per position: `tf.image.extract_patches` gives the same several
    times slower.

    Args:
      layer: a convolution.
      inputs: [B, *spatial, C].
      outputs: [B, *output spatial, F]; only the shape matters.
      size: spatial kernel size.

    Returns:
      Tensors [B, *output spatial, C], in row-major order of kernel positions.
    """
    rank = len(size)
    dynamic = tf.shape(outputs)
    lengths = [
        dynamic[axis + 1] if length is None else length
        for axis, length in enumerate(outputs.shape[1 : rank + 1])
    ]
    inputs = _padded(inputs, layer, size, lengths)
    slices = []
    for position in itertools.product(*(range(kernel) for kernel in size)):
        index: list[Any] = [slice(None)]
        for axis, offset in enumerate(position):
            start = offset * layer.dilation_rate[axis]
            stride = layer.strides[axis]
            stop = start + (lengths[axis] - 1) * stride + 1
            index.append(slice(start, stop, stride))
        slices.append(inputs[tuple(index)])
    return slices


class ConvolutionRule(PreActivationRule):
    """`Conv1D`, `Conv2D`, `Conv3D`: a product of input patches and gradients."""

    def supports(self, layer: Any, variables: Sequence[Any]) -> bool:
        return is_plain(
            layer, keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D
        ) and owns_only(variables, kernel_of(layer), layer.bias)

    def factors_of(self, call: LayerCall, gradient: tf.Tensor) -> Mapping[int, Factor]:
        layer = call.layer
        inputs = channels_last(call.inputs, layer.data_format)
        gradient = channels_last(gradient, layer.data_format)
        *size, depth, filters = kernel_shape(kernel_of(layer))
        result = self.of_bias(layer, gradient)
        if not any(variable is kernel_of(layer) for variable in call.variables):
            return result

        if layer.groups > 1:
            product = _product_of_groups(layer, inputs, gradient, size)
            result[id(kernel_of(layer))] = product
            return result
        terms = elements(gradient.shape[1:-1])
        of_unit = call.rows * terms if terms > 0 else None
        if prefers_forming(of_unit, math.prod(size) * depth * filters):
            formed = Formed(_form(layer, inputs, gradient, size, call.rows))
            result[id(kernel_of(layer))] = formed
        else:
            result[id(kernel_of(layer))] = _product(layer, inputs, gradient, size)
        return result


def _product(
    layer: Any, inputs: tf.Tensor, gradient: tf.Tensor, size: Sequence[int]
) -> Product:
    """Patches and gradients, one outer product per output position."""
    *_, depth, filters = shape = kernel_shape(kernel_of(layer))
    terms = elements(gradient.shape[1:-1])

    def left(inputs: tf.Tensor) -> tf.Tensor:
        patches = _patches(layer, inputs, gradient, size)
        return reshape_examples(patches, terms, math.prod(size) * depth)

    right = reshape_examples(gradient, terms, filters)
    return Product(left(inputs), right, Layout.plain(shape), (inputs, left))


def _product_of_groups(
    layer: Any, inputs: tf.Tensor, gradient: tf.Tensor, size: Sequence[int]
) -> Product:
    """As `_product`; channels are split into groups, each seeing its own inputs only."""
    *_, depth, filters = shape = kernel_shape(kernel_of(layer))
    patches = _patches(layer, inputs, gradient, size)
    terms = elements(gradient.shape[1:-1])
    kernel, groups = math.prod(size), layer.groups
    left = reshape_examples(patches, terms, kernel, groups, depth)
    left = tf.transpose(left, [0, 3, 1, 2, 4])
    left = reshape_examples(left, groups, terms, kernel * depth)
    right = reshape_examples(gradient, terms, groups, filters // groups)
    right = tf.transpose(right, [0, 2, 1, 3])
    layout = Layout(
        split=(groups, kernel, depth, filters // groups),
        order=(1, 2, 0, 3),
        shape=shape,
    )
    return Product(left, right, layout)


def _patches(
    layer: Any, inputs: tf.Tensor, gradient: tf.Tensor, size: Sequence[int]
) -> tf.Tensor:
    """What each output position saw, one kernel position after the other."""
    slices = shifted_inputs(layer, inputs, gradient, size)
    return slices[0] if len(slices) == 1 else tf.concat(slices, axis=-1)


def _form(
    layer: Any, inputs: tf.Tensor, gradient: tf.Tensor, size: Sequence[int], rows: int
) -> tf.Tensor:
    """The gradients of a kernel, [B, *kernel.shape], of which `rows` rows are one.

    Of the three ways, the fastest one for such shapes, see benchmarks/README.md.
    """
    terms = elements(gradient.shape[1:-1])
    *_, depth, filters = kernel_shape(kernel_of(layer))
    # Counted in inputs: slices that skip some of them are slow.
    positions = terms * math.prod(layer.strides)
    is_small = rows == 1 and 0 <= terms * math.prod(size) * depth * filters < _MANY
    has_few = depth <= _FEW_CHANNELS or positions <= _FEW_POSITIONS
    if (
        in_xla()
        or tf.config.list_logical_devices("GPU")
        or math.prod(size) == 1  # the inputs
        or not _has_two_dimensional_form(layer)
        or (is_small and has_few)
    ):
        return _from_patches(layer, inputs, gradient, size, rows)
    if is_small and depth * filters <= _MOST_OF_A_GROUP and _groups_have_gradients():
        return _in_groups(layer, inputs, gradient, size)
    if is_small and terms == positions <= _SOME_POSITIONS:
        return _from_patches(layer, inputs, gradient, size, rows)
    return _one_by_one(layer, inputs, gradient, size, rows)


@functools.cache
def _groups_have_gradients() -> bool:
    """Whether this CPU has gradients of grouped kernels: TensorFlow's oneDNN has."""
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


def _in_groups(
    layer: Any, inputs: tf.Tensor, gradient: tf.Tensor, size: Sequence[int]
) -> tf.Tensor:
    """As `_from_patches`, by one operation with a group of channels for each example."""
    *_, depth, filters = kernel_shape(kernel_of(layer))
    examples = tf.shape(inputs)[0]

    def side_by_side(tensor: tf.Tensor, channels: int) -> tf.Tensor:
        *spatial, _ = tensor.shape[1:]
        tensor = tf.transpose(tf.cast(tensor, tf.float32), [1, 2, 0, 3])
        return tf.reshape(tensor, [1, *spatial, examples * channels])

    formed = tf.raw_ops.Conv2DBackpropFilter(
        input=side_by_side(inputs, depth),
        filter_sizes=[*size, depth, examples * filters],
        out_backprop=side_by_side(gradient, filters),
        strides=[1, *layer.strides, 1],
        padding=layer.padding.upper(),
    )
    formed = tf.reshape(formed, [*size, depth, examples, filters])
    return tf.transpose(formed, [3, 0, 1, 2, 4])


def _one_by_one(
    layer: Any, inputs: tf.Tensor, gradient: tf.Tensor, size: Sequence[int], rows: int
) -> tf.Tensor:
    """As `_from_patches`, by TensorFlow's own operation for each of the B.

    It needs no patches, and about as long as the gradient of the whole batch, and a tenth
    of a millisecond more for each of the B.
    """
    shape = [*size, *kernel_shape(kernel_of(layer))[-2:]]
    # The operation would take positions that the static shape does not have.
    tensors = [tf.cast(tensor, tf.float32) for tensor in (inputs, gradient)]
    inputs, gradient = (
        reshape_examples(tensor, *tensor.shape[1:])
        if tensor.shape[1:].is_fully_defined()
        else tensor
        for tensor in tensors
    )

    units = tf.shape(inputs)[0] // rows

    # A range of the first dimension is a view. `map_fn` would copy it, or take twice as
    # many operations, all of which the first step has to optimize.
    def of_unit(unit: tf.Tensor, formed: tf.TensorArray) -> Any:
        first = unit * rows
        gradients = tf.raw_ops.Conv2DBackpropFilter(
            input=inputs[first : first + rows],
            filter_sizes=shape,
            out_backprop=gradient[first : first + rows],
            strides=[1, *layer.strides, 1],
            padding=layer.padding.upper(),
        )
        return unit + 1, formed.write(unit, gradients)

    formed = tf.TensorArray(tf.float32, units, element_shape=shape)
    _, formed = tf.while_loop(
        lambda unit, _: unit < units, of_unit, (tf.constant(0), formed)
    )
    return formed.stack()


def _from_patches(
    layer: Any, inputs: tf.Tensor, gradient: tf.Tensor, size: Sequence[int], rows: int
) -> tf.Tensor:
    """Returns the gradients of a kernel, [B, *kernel.shape].

    `rows` rows together are one of the B.
    """
    inputs, gradient = norms.kept(inputs), norms.kept(gradient)
    batch, terms = tf.shape(gradient)[0] // rows, elements(gradient.shape[1:-1])
    if terms > 0:
        terms *= rows
    *_, depth, filters = kernel_shape(kernel_of(layer))
    positions = math.prod(size)
    by_channel = depth <= _FEW_CHANNELS and _has_two_dimensional_form(layer)
    if by_channel:
        patches = _patches_by_channel(layer, inputs, size)
    else:
        patches = _patches(layer, inputs, gradient, size)
    left = tf.reshape(patches, [batch, terms, positions * depth])
    right = tf.reshape(gradient, [batch, terms, filters])
    formed = norms.formed(left, right)
    if by_channel:
        formed = tf.reshape(formed, [batch, depth, positions, filters])
        formed = tf.transpose(formed, [0, 2, 1, 3])
    return tf.reshape(formed, [batch, *size, depth, filters])


def _has_two_dimensional_form(layer: Any) -> bool:
    """Whether TensorFlow's operations in two dimensions pad and stride as the layer."""
    return (
        isinstance(layer, keras.layers.Conv2D)
        and layer.padding in ("same", "valid")
        and len(set(layer.strides)) == 1
        and set(layer.dilation_rate) == {1}
    )


def _patches_by_channel(
    layer: Any, inputs: tf.Tensor, size: Sequence[int]
) -> tf.Tensor:
    """Patches in the order channel, kernel position: [B, H, W, C * positions].

    A depthwise convolution with one kernel per position, that takes this position
    alone. For a few channels it is twice as fast as slices, which copy a few floats at
    a time.
    """
    positions = math.prod(size)
    one_each = np.eye(positions, dtype=np.float32).reshape(*size, 1, positions)
    kernel = tf.tile(one_each, [1, 1, inputs.shape[-1], 1])
    kernel = tf.cast(kernel, inputs.dtype)
    strides = [1, *layer.strides, 1]
    return tf.nn.depthwise_conv2d(inputs, kernel, strides, layer.padding.upper())


class DepthwiseConvolutionRule(PreActivationRule):
    """`DepthwiseConv1D` and `DepthwiseConv2D`: small kernels, kept per example."""

    def supports(self, layer: Any, variables: Sequence[Any]) -> bool:
        return is_plain(
            layer, keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D
        ) and owns_only(variables, layer.kernel, layer.bias)

    def factors_of(self, call: LayerCall, gradient: tf.Tensor) -> Mapping[int, Factor]:
        layer = call.layer
        inputs = channels_last(call.inputs, layer.data_format)
        gradient = tf.cast(channels_last(gradient, layer.data_format), tf.float32)
        *size, depth, multiplier = kernel_shape(layer.kernel)
        terms = elements(gradient.shape[1:-1])
        right = reshape_examples(gradient, terms, depth, multiplier)
        per_position = []
        for shifted in shifted_inputs(layer, inputs, gradient, size):
            left = tf.cast(reshape_examples(shifted, terms, depth, 1), tf.float32)
            per_position.append(tf.reduce_sum(left * right, axis=1))
        kernels = tf.stack(per_position, axis=1)
        shape = (*size, depth, multiplier)
        of_kernel = Instantiated(tf.reshape(kernels, (-1, *shape)))
        return {id(layer.kernel): of_kernel, **self.of_bias(layer, gradient)}
