"""Whether values of data decide how large a tensor becomes.

`map` and `parse` may fail for a record, which then counts as zero. A tensor of as many
entries as a record says is another matter: where memory ends, so does the process, and
that it ended would tell about the record (invariant 18). Sizes that follow from the size of
a record, and values with a constant above them, are fine.

Not seen is what a record's bytes unpack to: a serialized tensor, a compressed text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_bandmf.graphs.bounds import bounds
from tf_bandmf.graphs.operations import BRANCHES, LOOPS, OPERATIONS
from tf_bandmf.graphs.walking import Scope, called, has_node, live, walk

SIZED_BY_VALUES = (
    "makes a tensor of a size that a value in the data decides: one record could need more "
    "memory than there is, which ends the program. Limit the value by a constant: "
    "tf.clip_by_value of an integer"
)
# Whatever an input says that could stop these, no result is larger than their tensors:
# axes, orders, places, parts and bands.
_NEVER_LARGER = frozenset(
    "All Any ArgMax ArgMin Assert BatchMatrixBandPart BatchToSpaceND BroadcastArgs "
    "BroadcastGradientArgs ConcatOffset ConcatV2 ConjugateTranspose Cumprod Cumsum "
    "CumulativeLogsumexp EuclideanNorm ExpandDims GatherV2 InTopKV2 InvertPermutation "
    "MatrixBandPart MatrixDiagPartV2 MatrixDiagPartV3 MatrixSetDiagV2 MatrixSetDiagV3 Max "
    "Mean Min MirrorPadGrad NthElement Polygamma Prod Reshape Reverse ReverseSequence "
    "ReverseV2 Roll Slice Split SplitV StatelessShuffle StridedSlice Sum "
    "TensorListFromTensor TensorListGetItem TensorListPopBack TensorListSetItem "
    "TensorListStack TopKV2 Transpose Zeta".split()
)
# Of operations that are not total: inputs whose values decide about the size of a result.
_SIZES = {
    "Bincount": (1,),
    "CombinedNonMaxSuppression": (2, 3),
    "CropAndResize": (3,),
    "CropAndResizeGradImage": (3,),
    "DecodePaddedRaw": (1,),
    "DenseBincount": (1,),
    "ExtractGlimpse": (1,),
    "ExtractGlimpseV2": (1,),
    "FusedPadConv2D": (1,),
    "FusedResizeAndPadConv2D": (1, 2),
    "HistogramFixedWidth": (2,),
    "NonMaxSuppressionV4": (2,),
    "NonMaxSuppressionV5": (2,),
    "RaggedBincount": (2,),
    "RaggedRange": (0, 1, 2),
    "RaggedTensorToTensor": (0,),
    "SobolSample": (0, 1),
    "SpaceToBatch": (1,),
    "SparseBincount": (3,),
    "SparseFillEmptyRows": (2,),
    "SparseMatrixZeros": (0,),
    "SparseReduceMax": (2,),
    "SparseReduceSum": (2,),
    "SparseTensorDenseMatMul": (2,),
    "SparseTensorToCSRSparseMatrix": (2,),
    "SparseToDense": (1,),
    "TensorListScatter": (1,),
    "TensorListScatterV2": (3,),
    "UnsortedSegmentJoin": (2,),
    "XlaPad": (2, 3, 4),
    **{f"Segment{kind}": (1,) for kind in ("Max", "Mean", "Min", "Prod", "Sum")},
    **{f"Segment{kind}V2": (2,) for kind in ("Max", "Min", "Prod", "Sum")},
    **{f"SparseSegment{kind}": (2,) for kind in ("Mean", "SqrtN", "Sum")},
    **{
        f"SparseSegment{kind}WithNumSegments": (3,) for kind in ("Mean", "SqrtN", "Sum")
    },
    **{
        f"SparseSegment{kind}{version}": (3,)
        for kind in ("MeanGrad", "SqrtNGrad", "SumGrad")
        for version in ("", "V2")
    },
}
# These take pairs of indices and values: of the largest index follows the size.
_STITCHES = frozenset({"DynamicStitch", "ParallelDynamicStitch"})
# Outputs that are sizes, places or lengths of what an operation gets, or letters: they are
# as large as a record is long, or have a limit of their own. None for all.
_AS_LONG = {
    **dict.fromkeys(
        "ArgMax ArgMin CaseFoldUTF8 FastWordpieceTokenizeWithOffsets InvertPermutation "
        "NormalizeUTF8 Rank RegexSplitWithOffsets SentencepieceOp SentencepieceTokenizeOp "
        "SentencepieceTokenizeWithOffsetsOp Shape ShapeN Size StringLength UnicodeDecode "
        "UnicodeDecodeWithOffsets UnicodeScript UnicodeScriptTokenizeWithOffsets "
        "WhitespaceTokenizeWithOffsets WhitespaceTokenizeWithOffsetsV2 Where "
        "WordpieceTokenizeWithOffsets".split()
    ),
    "ListDiff": (1,),
    "StringSplit": (0, 2),
    "StringSplitV2": (0, 2),
    "TopK": (1,),
    "TopKV2": (1,),
    "Unique": (1,),
    "UniqueV2": (1,),
    "UniqueWithCounts": (1, 2),
    "UniqueWithCountsV2": (1, 2),
}
# Of these, likewise, by the ends of their outputs' names: sparse tensors and lists that
# are written in a record, entry by entry.
_WRITTEN = frozenset(
    "ParseExample ParseExampleV2 ParseSequenceExample ParseSequenceExampleV2 "
    "ParseSingleExample ParseSingleSequenceExample SparseCross SparseCrossHashed "
    "SparseCrossV2".split()
)
_PARTS = ("indices", "lengths", "row_splits", "shape", "shapes")


def sized_by_values(
    operations: Sequence[Any],
    scope: Scope,
    results: Sequence[Any],
    made_from: Mapping[int, Sequence[Any]],
) -> Iterator[tuple[Any, str]]:
    """Operations that make a tensor of a size that values of data decide, with the reason.

    Args:
      operations: of one graph; functions that they call are walked, too.
      scope: of the graph.
      results: what is wanted of it.
      made_from: as for `totality.stopping_operations`.
    """
    for op, here in walk(live(operations, results, made_from), scope, _may_size):
        inputs = list(op.inputs)
        for place in _places(op.type, len(inputs)):
            if _is_a_value(inputs[place], here) and not _has_limit(inputs[place], here):
                yield op, SIZED_BY_VALUES
                break


def _places(name: str, count: int) -> Sequence[int]:
    """Inputs of an operation whose values decide how large a result is."""
    if name in _STITCHES:
        return range(count // 2)
    known = OPERATIONS.get(name)
    if known is None or name in _NEVER_LARGER:
        return ()
    if name.startswith(("StatelessRandom", "StatelessTruncated", "StatelessParam")):
        return (0,)
    places = known.stops if known.total else _SIZES.get(name, ())
    return [place for place in places if -count <= place < count]


def _may_size(op: Any, name: str, scope: Scope) -> bool:
    del scope
    return has_node(op.graph, name, lambda node: bool(_places(node.op, 64)))


def _is_a_value(tensor: Any, scope: Scope) -> bool:
    """Whether data decide about a number, and not by the sizes of tensors alone."""
    pending, seen = [(tensor, scope)], set[int]()
    while pending:
        tensor, scope = pending.pop()
        tensor, scope = scope.origin(tensor)
        if id(tensor) in seen or _is_as_long(tensor) or not scope.depends(tensor):
            continue
        seen.add(id(tensor))
        behind = _behind(tensor, scope)
        if not behind:
            return True
        pending += behind
    return False


def _is_as_long(tensor: Any) -> bool:
    op = tensor.op
    places = _AS_LONG.get(op.type, ())
    if op.type in _WRITTEN:
        return _output_name(tensor).endswith(_PARTS)
    # What is true is counted, too.
    return places is None or tensor.value_index in places or tensor.dtype == tf.bool


def _output_name(tensor: Any) -> str:
    """What an operation calls an output, or the list of outputs that it is in."""
    op, end = tensor.op, 0
    for argument in op.op_def.output_arg:
        if argument.number_attr:
            end += op.get_attr(argument.number_attr)
        elif argument.type_list_attr:
            end += len(op.get_attr(argument.type_list_attr))
        else:
            end += 1
        if tensor.value_index < end:
            return str(argument.name)
    return ""


def _behind(tensor: Any, scope: Scope) -> list[tuple[Any, Scope]]:
    """What a tensor is computed from and depends on data; nothing of what is data."""
    op = tensor.op
    if op.type in LOOPS or not (functions := called(op)):
        return [(each, scope) for each in op.inputs if scope.depends(each)]
    found = [(each, scope) for each in op.inputs[:1] if op.type in BRANCHES]
    for name, given in functions:
        graph, inner = scope.inside(op, name, given)
        found.append((graph.outputs[tensor.value_index], inner))
    return found


def _has_limit(tensor: Any, scope: Scope) -> bool:
    return any(isinstance(limit, int) for limit in bounds(tensor, scope).below)
