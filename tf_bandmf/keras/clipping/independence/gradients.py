"""Operations of gradients, which vectorized examples have in their graphs."""

from __future__ import annotations

from tf_bandmf.graphs.shapes import shape_of
from tf_bandmf.keras.clipping.independence import sizes
from tf_bandmf.keras.clipping.independence.domain import (
    NotIndependent,
    Value,
    mixes,
    per_example,
)
from tf_bandmf.keras.clipping.independence.evaluation import Node, transfer
from tf_bandmf.keras.clipping.independence.layout import needs_rows
from tf_bandmf.keras.clipping.independence.sizes import Dim, as_tuple


@transfer("StridedSliceGrad")
def _slice(node: Node) -> Value:
    value = node.values[4]
    rows = needs_rows(value)
    first_whole = all(int(node.attr(f"{name}_mask")) & 1 for name in ("begin", "end"))
    moved = any(
        int(node.attr(f"{name}_mask")) & 1
        for name in ("ellipsis", "new_axis", "shrink_axis")
    )
    strides = as_tuple(node.content(3))
    if value.axis or not first_whole or moved or not strides or strides[0] != sizes.ONE:
        raise mixes("puts rows of the batch in other places")
    if not all(node.values[index].independent for index in (1, 2)):
        raise NotIndependent("has positions that are not constant")
    return per_example(0, rows, _given_shape(node, rows, 0))


@transfer(
    "Conv2DBackpropInput", "Conv3DBackpropInputV2", "DepthwiseConv2dNativeBackpropInput"
)
def _convolution(node: Node) -> Value:
    value = node.values[2]
    rows = needs_rows(value)
    if not node.values[1].independent:
        raise mixes("uses examples as a kernel")
    if any(node.attr(name)[0] != 1 for name in ("dilations", "strides")) or value.axis:
        raise mixes("steps over examples")
    return per_example(0, rows, _given_shape(node, rows, 0))


@transfer("MaxPoolGrad", "MaxPool3DGrad", "AvgPoolGrad", "AvgPool3DGrad")
def _pool(node: Node) -> Value:
    if any(node.attr(name)[0] != 1 for name in ("ksize", "strides")):
        raise mixes("pools over examples")
    if node.op.type.startswith("Avg"):
        rows = needs_rows(node.values[1])
        if node.values[1].axis:
            raise mixes("takes another axis than that of the batch for the examples")
        return per_example(0, rows, _given_shape(node, rows, 0))
    for value in node.values:
        if needs_rows(value) != needs_rows(node.values[0]) or value.axis:
            raise mixes("takes another axis than that of the batch for the examples")
    return per_example(0, needs_rows(node.values[0]))


def _given_shape(node: Node, rows: Dim, index: int) -> tuple[Dim, ...]:
    """The shape that an operation is asked for: so many rows, and no B elsewhere.

    Raises:
      NotIndependent: if it is another one.
    """
    entries = as_tuple(node.content(index))
    if entries is None or len(entries) != shape_of(node.op.outputs[0]).rank:
        raise NotIndependent("asks for a shape that is not known")
    if entries[0] != rows or any(dim.depends_on_batch for dim in entries[1:]):
        raise mixes("asks for another number of examples than there are")
    return entries


@transfer("DepthwiseConv2dNativeBackpropFilter")
def _depthwise_kernel(node: Node) -> Value:
    # TensorFlow puts examples beside the channels: each channel has a kernel of its own.
    images, gradients = node.values[0], node.values[2]
    rows, of_gradients = needs_rows(images), needs_rows(gradients)
    kernel = as_tuple(node.content(1))
    last = images.axis == gradients.axis == 3 and node.attr("data_format") == b"NHWC"
    if not last or kernel is None or kernel[2] != rows:
        raise mixes("adds gradients of a kernel up over the batch")
    if of_gradients != rows * kernel[3] or kernel[3].depends_on_batch:
        raise NotIndependent("combines rows that are split in different ways")
    return per_example(2, rows, kernel)
