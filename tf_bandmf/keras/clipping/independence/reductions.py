"""Operations along axes: sums, sorting, gathering, matrix products, convolutions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tf_bandmf.graphs.shapes import shape_of
from tf_bandmf.keras.clipping.independence import sizes
from tf_bandmf.keras.clipping.independence.domain import (
    Kind,
    NotIndependent,
    Value,
    mixes,
    per_example,
)
from tf_bandmf.keras.clipping.independence.elementwise import POSITIONS, aligned
from tf_bandmf.keras.clipping.independence.evaluation import Node, transfer
from tf_bandmf.keras.clipping.independence.layout import (
    needs_independent,
    needs_rows,
    of_content,
)
from tf_bandmf.keras.clipping.independence.sizes import Dim, as_tuple


@transfer("Sum", "Mean", "Max", "Min", "Prod", "All", "Any", "EuclideanNorm")
def _reduce(node: Node) -> Value:
    value = node.values[0]
    if value.kind is Kind.SIZE or value.independent:
        entries = as_tuple(node.content(0))
        if entries is not None and node.op.type == "Prod":
            return of_content(sizes.product(entries))
        return Value(value.kind)
    rows = needs_rows(value)
    rank = node.rank(0)
    axes = {axis % rank for axis in node.constants(1)}
    if value.axis in axes:
        raise mixes("combines all examples of the batch into one number")
    if node.attr("keep_dims"):
        return per_example(value.axis, rows)
    return per_example(value.axis - sum(axis < value.axis for axis in axes), rows)


@transfer("ArgMax", "ArgMin")
def _argument(node: Node) -> Value:
    value = node.values[0]
    rows = needs_rows(value)
    (axis,) = node.constants(1)
    axis %= node.rank(0)
    if axis == value.axis:
        raise mixes("compares the examples of the batch with one another")
    return per_example(value.axis - (axis < value.axis), rows)


def _along(node: Node, axes: Sequence[int]) -> Value:
    """The value of what combines entries along axes and keeps the shape."""
    value = node.values[0]
    needs_rows(value)
    rank = node.rank(0)
    if value.axis in {axis % rank for axis in axes}:
        raise mixes("works along the axis of the batch")
    return dataclasses.replace(value, content=None)


@transfer("Cumsum", "Cumprod", "CumulativeLogsumexp")
def _cumulative(node: Node) -> Value:
    return _along(node, node.constants(1))


@transfer("ReverseV2")
def _reverse(node: Node) -> Value:
    return _along(node, node.constants(1))


@transfer("Roll")
def _roll(node: Node) -> Value:
    needs_independent(node, 1)
    return _along(node, node.constants(2))


@transfer("ReverseSequence")
def _reverse_sequence(node: Node) -> Value:
    value, lengths = node.values
    if lengths.independent or needs_rows(lengths) != needs_rows(value):
        raise NotIndependent("is not known for such lengths")
    if int(node.attr("batch_dim")) != value.axis:
        raise mixes("works along the axis of the batch")
    return dataclasses.replace(value, content=None)


@transfer("Softmax", "LogSoftmax", "L2Loss")
def _last_axis(node: Node) -> Value:
    if node.op.type == "L2Loss":
        raise mixes("combines all examples of the batch into one number")
    return _along(node, [-1])


@transfer("TopKV2", "TopK")
def _top(node: Node) -> list[Value]:
    if not all(value.independent for value in node.values[1:]):
        raise NotIndependent("takes a number of entries that is not constant")
    return [_along(node, [-1])] * 2


@transfer("OneHot")
def _one_hot(node: Node) -> Value:
    value = node.values[0]
    rows = needs_rows(value)
    if not all(other.independent for other in node.values[1:]):
        raise NotIndependent("has a depth or values that are not constant")
    axis = int(node.attr("axis")) % (node.rank(0) + 1)
    return per_example(value.axis + (axis <= value.axis), rows)


@transfer("GatherV2")
def _gather(node: Node) -> Value:
    params, indices, axis_value = node.values
    if params.kind is Kind.SIZE and indices.independent:
        entries = as_tuple(node.content(0))
        where = as_tuple(node.content(1))
        if entries is None or where is None or any(w.symbols for w in where):
            return Value(Kind.SIZE)
        taken = tuple(entries[w.factor] for w in where)
        return of_content(taken if node.rank(1) else taken[0])
    if not axis_value.independent:
        raise NotIndependent("gathers along an axis that is not constant")
    (axis,) = node.constants(2)
    axis %= node.rank(0)
    batch_dims = int(node.attr("batch_dims"))
    batch_dims += node.rank(1) if batch_dims < 0 else 0
    if params.independent:
        rows = needs_rows(indices)
        if indices.axis < batch_dims:
            raise NotIndependent(POSITIONS)
        return per_example(axis + indices.axis - batch_dims, rows)
    rows = needs_rows(params)
    if indices.kind is Kind.INDEX and indices.rows == rows:
        # Each row where it is.
        if axis == params.axis == 0 and not batch_dims and node.rank(1) == 1:
            return dataclasses.replace(params, content=None)
    if indices.independent:
        if params.axis == axis or params.axis < batch_dims:
            raise mixes("takes some of the examples out of the batch")
        shift = node.rank(1) - batch_dims - 1 if params.axis > axis else 0
        return per_example(params.axis + shift, rows)
    if needs_rows(indices) != rows or params.axis != indices.axis:
        raise mixes("looks up entries of other examples")
    if params.axis >= batch_dims:
        raise mixes("looks up entries of other examples")
    return per_example(params.axis, rows)


@transfer("ResourceGather")
def _gather_variable(node: Node) -> Value:
    rows = needs_rows(node.values[1])
    if int(node.attr("batch_dims")):
        raise NotIndependent(POSITIONS)
    return per_example(node.values[1].axis, rows)


@transfer("GatherNd")
def _gather_nd(node: Node) -> Value:
    params, indices = node.values
    if not params.independent:
        raise mixes("looks up entries of other examples")
    rows = needs_rows(indices)
    if indices.axis == node.rank(1) - 1:
        raise mixes("takes examples as coordinates")
    return per_example(indices.axis, rows)


@transfer("LookupTableFindV2")
def _look_up(node: Node) -> Value:
    _, keys, default = node.values
    needs_rows(keys)
    if not default.independent:
        raise NotIndependent("has a default that is not constant")
    return dataclasses.replace(keys, content=None)


@transfer("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def _product(node: Node) -> Value:
    names = ("transpose_a", "transpose_b")
    if node.op.type != "MatMul":
        names = ("adj_x", "adj_y")
    ranks = node.rank(0), node.rank(1)
    outputs_rank = max(ranks)
    letters = "abcdefghij"[: outputs_rank - 2]
    inner = ["MK", "KN"]
    for index, name in enumerate(names):
        if node.attr(name):
            inner[index] = inner[index][::-1]
    operands = [
        letters[len(letters) - (rank - 2) :] + matrix
        for rank, matrix in zip(ranks, inner, strict=True)
    ]
    return _contraction(node, operands, letters + "MN")


@transfer("Einsum")
def _einsum(node: Node) -> Value:
    equation = node.attr("equation")
    equation = equation.decode() if isinstance(equation, bytes) else str(equation)
    left, arrow, output = equation.replace(" ", "").partition("->")
    if not arrow:
        raise NotIndependent("has an equation without an output")
    operands = left.split(",")
    longest = max(
        (node.rank(i) - len(o.replace("...", "")) for i, o in enumerate(operands)),
        default=0,
    )
    # Axes of an ellipsis are aligned at its end.
    names = "0123456789"[: max(longest, 0)]

    def spelled(letters: str, count: int) -> str:
        return letters.replace("...", names[len(names) - count :] if count else "")

    spelled_operands = [
        spelled(o, node.rank(i) - len(o.replace("...", "")))
        for i, o in enumerate(operands)
    ]
    return _contraction(node, spelled_operands, spelled(output, len(names)))


def _contraction(node: Node, operands: Sequence[str], output: str) -> Value:
    """The value of a sum of products, with one letter for each axis."""
    letter: str | None = None
    rows: Dim | None = None
    for value, letters in zip(node.values, operands, strict=True):
        if value.independent:
            continue
        here = letters[value.axis] if needs_rows(value) else ""
        if letter is not None and here != letter:
            raise mixes("multiplies each example with every example of the batch")
        if rows is not None and value.rows != rows:
            raise NotIndependent("combines rows that are split in different ways")
        if letters.count(here) > 1:
            raise mixes("takes a diagonal of the batch")
        letter, rows = here, value.rows
    assert letter is not None and rows is not None
    for index, (value, letters) in enumerate(zip(node.values, operands, strict=True)):
        if value.independent and letter in letters:
            if shape_of(node.op.inputs[index])[letters.index(letter)] != 1:
                raise NotIndependent(POSITIONS)
    if output.count(letter) != 1:
        raise mixes("sums products over the batch")
    return per_example(output.index(letter), rows)


@transfer("BiasAdd")
def _bias(node: Node) -> Value:
    value, bias = node.values
    needs_rows(value)
    channels = 1 if node.attr("data_format") == b"NCHW" else node.rank(0) - 1
    if not bias.independent or value.axis == channels:
        raise mixes("adds a bias along the axis of the batch")
    return dataclasses.replace(value, content=None)


def _first_axis(node: Node, value: Value, count: int = 1) -> list[Value]:
    """Values of what treats rows of axis 0 alone."""
    rows = needs_rows(value)
    if value.axis != 0:
        raise mixes("takes another axis than that of the batch for the examples")
    return [per_example(0, rows)] * count


def _steps(node: Node, *attributes: str) -> bool:
    """Whether a window is longer than one along the first axis."""
    return any(node.attr(attribute)[0] != 1 for attribute in attributes)


@transfer("Conv", "Conv2D", "Conv3D", "DepthwiseConv2dNative")
def _convolution(node: Node) -> Value:
    if not node.values[1].independent:
        raise mixes("uses examples as a kernel")
    if _steps(node, "dilations", "strides"):
        raise mixes("steps over examples")
    if node.values[0].kind is Kind.BLOCKS:
        return dataclasses.replace(node.values[0], shape=None)
    return _first_axis(node, node.values[0])[0]


@transfer("MaxPool", "AvgPool", "MaxPool3D", "AvgPool3D")
def _pool(node: Node) -> Value:
    if _steps(node, "ksize", "strides"):
        raise mixes("pools over examples")
    return _first_axis(node, node.values[0])[0]


@transfer("ExtractImagePatches")
def _patches(node: Node) -> Value:
    if _steps(node, "ksizes", "strides", "rates"):
        raise mixes("takes patches over examples")
    return _first_axis(node, node.values[0])[0]


@transfer(
    "ResizeBilinear",
    "ResizeNearestNeighbor",
    "ResizeBicubic",
    "ResizeArea",
    "ScaleAndTranslate",
    "SpaceToDepth",
    "DepthToSpace",
    "RGBToHSV",
    "HSVToRGB",
)
def _images(node: Node) -> Value:
    if not all(value.independent for value in node.values[1:]):
        raise NotIndependent("has sizes that are not constant")
    return _first_axis(node, node.values[0])[0]


@transfer("ImageProjectiveTransformV2", "ImageProjectiveTransformV3")
def _transformed_images(node: Node) -> Value:
    transforms = node.values[1]
    if not all(value.independent for value in node.values[2:]):
        raise NotIndependent("has sizes that are not constant")
    (result,) = _first_axis(node, node.values[0])
    if transforms.independent:
        if shape_of(node.op.inputs[1])[0] != 1:
            raise NotIndependent(POSITIONS)
    elif _first_axis(node, transforms) != [result]:
        raise NotIndependent("combines rows that are split in different ways")
    return result


@transfer("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits")
def _cross_entropy(node: Node) -> list[Value]:
    logits, labels = node.values
    if labels.kind in (Kind.INDEX, Kind.INDEPENDENT) or logits.independent:
        raise mixes("compares each example with others of the batch")
    _first_axis(node, labels)
    if labels.rows != logits.rows:
        raise NotIndependent("combines rows that are split in different ways")
    return _first_axis(node, logits, 2)


@transfer(
    "BatchMatrixBandPart",
    "MatrixBandPart",
    "Cholesky",
    "MatrixInverse",
    "MatrixDeterminant",
    "LogMatrixDeterminant",
    "Svd",
    "SelfAdjointEigV2",
    "Qr",
    "FFT",
    "FFT2D",
    "FFT3D",
    "IFFT",
    "IFFT2D",
    "IFFT3D",
    "MatrixDiagPart",
    "MatrixDiagPartV2",
    "MatrixDiagPartV3",
)
def _matrices(node: Node) -> list[Value]:
    value = node.values[0]
    rows = needs_rows(value)
    if not all(other.independent for other in node.values[1:]):
        raise NotIndependent("has parameters that are not constant")
    last = 3 if "3D" in node.op.type else 2
    if value.axis >= node.rank(0) - last:
        raise mixes("treats the batch as a matrix")
    return [per_example(value.axis, rows)] * len(node.op.outputs)


@transfer("MatrixSolve", "MatrixTriangularSolve")
def _solve(node: Node) -> Value:
    for index, value in enumerate(node.values):
        if not value.independent and value.axis >= node.rank(index) - 2:
            raise mixes("treats the batch as a matrix")
    return aligned(node, range(2))
