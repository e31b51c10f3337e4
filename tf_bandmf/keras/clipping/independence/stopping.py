"""Operations that stop the program because of a value in the data.

That a run stops, or goes on, would tell about the record (invariant 5). What Keras does
with bad labels and ids is made total by `data_errors`; an operation of the model's own
that raises for some values is refused before anything was computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util_v2

from tf_bandmf.keras.clipping.independence.domain import NotIndependent
from tf_bandmf.keras.clipping.independence.state import ADVANCES, called, has_node

# Operation -> inputs whose values can stop it.
_STOPS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        (
            "Assert CheckNumerics CheckNumericsV2 Cholesky MatrixInverse Lu "
            "MatrixLogarithm MatrixSolve MatrixTriangularSolve BandedTriangularSolve "
            "TridiagonalSolve SelfAdjointEigV2 StringToNumber DecodeBase64 "
            "InvertPermutation Bincount DenseBincount SparseBincount Fill "
            # Their gradients invert.
            "MatrixDeterminant LogMatrixDeterminant"
        ).split(),
        (0,),
    ),
    "HistogramFixedWidth": (0, 1),
    # Draws for ever from a rate that is huge or NaN.
    "StatelessRandomPoisson": (2,),
    "RandomPoissonV2": (1,),
    **dict.fromkeys("ReverseSequence Slice Tile MatrixDiagPartV3".split(), (1,)),
    "MatrixBandPart": (1, 2),
    "Range": (0, 1, 2),
    "CTCLoss": (1, 2, 3),
    "CTCLossV2": (1, 2, 3),
}
# Operation -> inputs that are positions, which must be within the bounds of a tensor.
_POSITIONS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        (
            "GatherV2 GatherNd ResourceGather ResourceGatherNd SegmentSum SegmentMean "
            "SegmentMax SegmentMin SegmentProd UnsortedSegmentSum UnsortedSegmentMax "
            "UnsortedSegmentMin UnsortedSegmentProd TensorScatterUpdate TensorScatterAdd "
            "TensorScatterSub TensorScatterMax TensorScatterMin "
            "SparseSoftmaxCrossEntropyWithLogits"
        ).split(),
        (1,),
    ),
    **dict.fromkeys("ScatterNd SparseToDense".split(), (0,)),
    **dict.fromkeys(
        "SparseSegmentSum SparseSegmentMean SparseSegmentSqrtN".split(), (1, 2)
    ),
}
# A position that one of these chose, or that is a truth value, is taken to be within
# bounds.
_CHOOSES = frozenset(
    (
        "SelectV2 Select ClipByValue Minimum Maximum FloorMod ArgMax ArgMin TopKV2 Where "
        "DynamicPartition"  # With which `vectorized_map` takes both branches.
    ).split()
)
_PASSES = frozenset(
    "Identity Cast Reshape ExpandDims Squeeze Transpose BroadcastTo".split()
)
# These stop a division of integers by zero, a power of integers with a negative exponent.
_OF_INTEGERS = frozenset(
    "Div FloorDiv FloorMod Mod TruncateDiv TruncateMod Pow".split()
)
# What moves the positions of one example's part to those of another's.
_MOVES = frozenset("AddV2 Add Sub Mul Pack ConcatV2".split())
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
# What they return depends on shapes alone.
_SHAPES = frozenset({"Shape", "ShapeN", "Rank", "Size"})


class _Dependence:
    """Which tensors of a graph depend on values in the data.

    Args:
      given: of a function's graph: input -> whether it does.
    """

    def __init__(self, given: Mapping[int, bool]) -> None:
        self._found = dict(given)
        self._keep: list[Any] = []

    def of(self, tensor: Any) -> bool:
        """Whether a tensor does."""
        stack = [tensor]
        while stack:
            current = stack[-1]
            if id(current) in self._found:
                stack.pop()
                continue
            op = current.op
            if op.type in _SHAPES or current.dtype == tf.resource:
                self._set(current, False)
            elif op.type in ("Placeholder", "Arg", "_Arg"):
                self._set(current, not _is_constant(op))
            else:
                needed = [t for t in op.inputs if id(t) not in self._found]
                if needed:
                    stack.extend(needed)
                    continue
                self._set(current, any(self._found[id(t)] for t in op.inputs))
            stack.pop()
        return self._found[id(tensor)]

    def _set(self, tensor: Any, found: bool) -> None:
        self._found[id(tensor)] = found
        self._keep.append(tensor)


def refuse_stops(operations: Sequence[Any], examples: Sequence[Any]) -> None:
    """Refuses operations that stop the program for some values of the data.

    Args:
      operations: of the forward pass, in one graph; functions that they call are
        searched as well.
      examples: the tensors that hold the data.

    Raises:
      NotIndependent: with the operation.
    """
    data = _Dependence({id(tensor): True for tensor in examples})
    _search(operations, data, decided=False)


def refuse_kept_data(operations: Sequence[Any], examples: Sequence[Any]) -> None:
    """Refuses counters of random generators that are advanced by what is in the data.

    The next step would read it there. All other writes are refused whatever is written.

    Args:
      operations: of the step, in one graph; functions that they call are searched too.
      examples: the tensors that hold the data.

    Raises:
      NotIndependent: with the operation.
    """
    _search_kept(operations, _Dependence({id(tensor): True for tensor in examples}))


def _search_kept(operations: Sequence[Any], data: _Dependence) -> None:
    for op in operations:
        index = ADVANCES.get(op.type)
        if index is not None and data.of(op.inputs[index]):
            raise NotIndependent(
                "keeps data in the counter of a random generator, for the next step", op
            )
        for name, given in called(op):
            if not has_node(op.graph, name, lambda node: node.op in ADVANCES):
                continue
            shapes = [tensor.shape for tensor in given]
            graph = control_flow_util_v2.get_func_graph(op, shapes, name)
            graph._calling_operation = op
            known = [data.of(tensor) for tensor in given]
            # A loop may hand on in any state what it was given in another one; what
            # decides about a branch is in what is kept there.
            if any(data.of(t) for t in op.inputs) and op.type not in _CALLS:
                known = [True] * len(known)
            inside = _Dependence(
                {
                    id(i): known[k] and i.dtype != tf.resource
                    for k, i in enumerate(graph.inputs)
                }
            )
            _search_kept(graph.get_operations(), inside)


def _search(operations: Sequence[Any], data: _Dependence, decided: bool) -> None:
    for op in operations:
        if any(data.of(tensor) for tensor in _stopping(op, data)) or (
            decided and op.type == "Assert"
        ):
            raise NotIndependent(
                "stops the program for some values of the data: one record would end the "
                "training, and that it ended would tell about it",
                op,
            )
        for name, given in called(op):
            if not has_node(op.graph, name, _may_stop):
                continue
            shapes = [tensor.shape for tensor in given]
            graph = control_flow_util_v2.get_func_graph(op, shapes, name)
            graph._calling_operation = op
            inside = _Dependence(
                {id(i): data.of(o) for i, o in zip(graph.inputs, given, strict=True)}
            )
            # What decides about a branch decides about the assertions in it.
            choice = list(op.inputs)[: len(op.inputs) - len(given)]
            _search(
                graph.get_operations(),
                inside,
                decided or any(data.of(tensor) for tensor in choice),
            )


def _may_stop(node: Any) -> bool:
    """Whether a node is of the tables."""
    return node.op in _STOPS or node.op in _POSITIONS or node.op in _OF_INTEGERS


def _stopping(op: Any, data: _Dependence) -> list[Any]:
    """Inputs of an operation whose values can stop it."""
    inputs = list(op.inputs)
    wanted = _STOPS.get(op.type, ())
    if op.type in _OF_INTEGERS and inputs[0].dtype.is_integer:
        wanted = (1,)
    found = [inputs[index] for index in wanted if index < len(inputs)]
    positions = [inputs[index] for index in _POSITIONS.get(op.type, ())]
    return found + [tensor for tensor in positions if not _is_chosen(tensor, data)]


def _is_chosen(tensor: Any, data: _Dependence) -> bool:
    """Whether a position was chosen within bounds, moved by what is no data at most."""
    pending = [tensor]
    while pending:
        current = pending.pop()
        op = current.op
        if current.dtype == tf.bool:
            continue  # 0 or 1
        if op.type in _PASSES:
            pending.append(op.inputs[0])
        elif op.type in _MOVES:
            pending += [t for t in op.inputs if data.of(t)]
        elif op.type not in _CHOOSES:
            return False
    return True


def _is_constant(op: Any) -> bool:
    """Whether what enters a graph is a tensor that the program holds already."""
    return any(
        internal is op.outputs[0] and isinstance(external, tf.__internal__.EagerTensor)
        for external, internal in getattr(op.graph, "captures", ())
    )
