"""Evaluation of a graph on abstract values.

From the tensors in question back to the inputs of the model, every operation on the way
is looked up in the table of operations whose semantics are known here. What is not in
the table, or not in a form that the table knows, is an error: unknown is never safe.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import tensor_util
from tensorflow.python.ops import control_flow_util_v2

from tf_bandmf.keras.clipping.independence import sizes, state
from tf_bandmf.keras.clipping.independence.custom_gradients import refuse_unknown
from tf_bandmf.keras.clipping.independence.domain import (
    INDEPENDENT,
    Kind,
    NotIndependent,
    Value,
    per_example,
)
from tf_bandmf.keras.clipping.independence.sizes import BATCH, Content, Dim

# Longer constants are no shapes.
_LONGEST_SHAPE = 32


@dataclasses.dataclass(frozen=True)
class Node:
    """An operation with the abstract values of its inputs.

    Attributes:
      op: the operation.
      values: of its inputs, in order.
      graph: evaluates other graphs, and knows sizes.
    """

    op: Any
    values: tuple[Value, ...]
    graph: Evaluation

    def attr(self, name: str) -> Any:
        """An attribute of the operation."""
        return self.op.get_attr(name)

    def rank(self, index: int) -> int:
        """Static rank of an input."""
        return self.rank_of(self.op.inputs[index])

    def rank_of(self, tensor: tf.Tensor) -> int:
        """Static rank of a tensor."""
        if tensor.shape.rank is None:
            raise NotIndependent("works on a tensor of unknown rank")
        return int(tensor.shape.rank)

    def content(self, index: int) -> Content:
        """Entries of an integer input, where known."""
        return self.graph.content(self.op.inputs[index], self.values[index])

    def constants(self, index: int) -> list[int]:
        """Entries of an input, which must be constant integers.

        Raises:
          NotIndependent: if they are not.
        """
        entries = sizes.as_tuple(self.content(index))
        if entries is None or any(entry.symbols for entry in entries):
            raise NotIndependent("has axes or positions that are not constant")
        return [entry.factor for entry in entries]

    def shape(self, index: int) -> tuple[Dim, ...]:
        """Symbolic shape of an input."""
        return self.graph.shape(self.op.inputs[index], self.values[index])


Transfer = Callable[[Node], "Value | list[Value]"]
TABLE: dict[str, Transfer] = {}


def transfer(*types: str) -> Callable[[Transfer], Transfer]:
    """Registers what operations of these types do to abstract values."""

    def register(function: Transfer) -> Transfer:
        for name in types:
            assert name not in TABLE, name
            TABLE[name] = function
        return function

    return register


class Evaluation:
    """Abstract values of one graph's tensors.

    Args:
      known: values of tensors that are given, by id: inputs, outputs of layers.
      pending: tensors whose value is found from other tensors by a function: id ->
        (tensors it needs, function of their values).
      static_batch: if not None, the batch size is this number, which occurs nowhere
        else: its multiples in shapes are multiples of the batch size.
      sums: whether sums over examples are followed (for losses).
    """

    def __init__(
        self,
        known: Mapping[int, Value],
        pending: Mapping[int, tuple[Sequence[Any], Callable[[list[Value]], Value]]]
        | None = None,
        *,
        static_batch: int | None = None,
        sums: bool = False,
    ) -> None:
        self._values = dict(known)
        self._pending = dict(pending or {})
        self._static = static_batch
        self._symbols: dict[tuple[int, int], Dim] = {}
        self._keep: list[Any] = []
        self.sums = sums

    def value(self, tensor: tf.Tensor) -> Value:
        """The value of a tensor.

        Raises:
          NotIndependent: if it may depend on several examples, with the operation.
        """
        stack = [tensor]
        while stack:
            current = stack[-1]
            if id(current) in self._values:
                stack.pop()
                continue
            pending = self._pending.get(id(current))
            needed = pending[0] if pending else list(current.op.inputs)
            missing = [t for t in needed if id(t) not in self._values]
            if missing:
                stack.extend(missing)
                continue
            values = [self._values[id(t)] for t in needed]
            if pending:
                try:
                    self._set(current, pending[1](values))
                except NotIndependent as error:
                    error.operation = current.op
                    raise
            else:
                self._operation(current.op, values)
            stack.pop()
        return self._values[id(tensor)]

    def _set(self, tensor: tf.Tensor, value: Value) -> None:
        self._values[id(tensor)] = value
        self._keep.append(tensor)

    def _operation(self, op: Any, values: list[Value]) -> None:
        try:
            results = self._results(op, tuple(values))
        except NotIndependent as error:
            if error.operation is None:
                error.operation = op
            raise
        for output, result in zip(op.outputs, results, strict=True):
            # What is given stays: the output of a layer in the closed list.
            if id(output) not in self._values and id(output) not in self._pending:
                self._set(output, self._with_static_batch(output, result))

    def _with_static_batch(self, tensor: tf.Tensor, value: Value) -> Value:
        """Takes constants of the size of the batch for what they are made for.

        Only where the batch size is a number that occurs nowhere else: there, shapes are
        constants. What follows from it is shown again where the batch size is unknown.
        """
        if self._static is None or not value.independent or value.content is not None:
            return value
        shape = tensor.shape.as_list() if tensor.shape.rank else []
        dims = [self.dim(size) if size else sizes.ONE for size in shape]
        axes = [axis for axis, dim in enumerate(dims) if dim.is_rows]
        return per_example(axes[0], dims[axes[0]]) if len(axes) == 1 else value

    def _results(self, op: Any, values: tuple[Value, ...]) -> list[Value]:
        if op.type in ("Placeholder", "Arg", "_Arg"):
            return [_placeholder(op)]
        if all(v.independent for v in values) and op.type not in _NEW_LISTS:
            # What functions inside do to state is searched for by itself.
            state.refuse_host_operation(op)
            fresh = state.draws_anew(op) or (
                any(v.fresh for v in values) and state.keeps_fresh(op)
            )
            return [
                dataclasses.replace(INDEPENDENT, content=content, fresh=fresh)
                for content in self._independent_contents(op, values)
            ]
        refuse_unknown(op)
        function = TABLE.get(op.type)
        if function is None:
            raise NotIndependent(
                f"is of type {op.type}, of which it is not known here whether it keeps "
                "examples apart"
            )
        result = function(Node(op, values, self))
        results = result if isinstance(result, list) else [result] * len(op.outputs)
        return results

    def _independent_contents(
        self, op: Any, values: tuple[Value, ...]
    ) -> list[Content]:
        """Integer contents that only symbolic arithmetic finds (time dimensions)."""
        nothing: list[Content] = [None] * len(op.outputs)
        if op.type not in _ARITHMETIC:
            return nothing
        output = op.outputs[0]
        if not output.dtype.is_integer or output.shape.rank not in (0, 1):
            return nothing
        try:
            result = TABLE[op.type](Node(op, values, self))
        except NotIndependent:
            return nothing
        return nothing if isinstance(result, list) else [result.content]

    def content(self, tensor: tf.Tensor, value: Value) -> Content:
        """Entries of an integer scalar or vector, where known."""
        if value.content is not None:
            return value.content
        if not value.independent or not tensor.dtype.is_integer:
            return None
        rank = tensor.shape.rank
        if rank is None or rank > 1:
            return None
        if rank == 1 and (tensor.shape[0] or 0) > _LONGEST_SHAPE:
            return None
        constant = tensor_util.constant_value(tensor)
        if constant is None:
            return None
        if rank == 0:
            return self.dim(int(constant))
        return tuple(self.dim(int(entry)) for entry in constant)

    def dim(self, size: int) -> Dim:
        """A constant as a symbolic size."""
        if self._static is not None and size > 0 and size % self._static == 0:
            return Dim(size // self._static) * BATCH
        return Dim(size)

    def shape(self, tensor: tf.Tensor, value: Value) -> tuple[Dim, ...]:
        """Symbolic shape of a tensor."""
        if tensor.shape.rank is None:
            raise NotIndependent("works on a tensor of unknown rank")
        dims = []
        for axis, size in enumerate(tensor.shape):
            batched = value.kind in (Kind.PER_EXAMPLE, Kind.INDEX)
            if batched and axis == value.axis:
                assert value.rows is not None
                dims.append(value.rows)
            elif size is not None:
                # Only the axis of the batch can have a size that depends on it.
                dims.append(Dim(int(size)))
            else:
                key = (id(tensor), axis)
                self._keep.append(tensor)
                depends = value.kind is Kind.SIZE
                if key not in self._symbols:
                    self._symbols[key] = sizes.unknown(depends)
                dims.append(self._symbols[key])
        return tuple(dims)

    def inner(self, values: Mapping[int, Value]) -> Evaluation:
        """An evaluation of a function's graph."""
        return Evaluation(values, static_batch=self._static, sums=self.sums)

    def call(
        self, op: Any, name: str, values: Sequence[Value], inputs: Sequence[Any]
    ) -> list[Value]:
        """Values of a function's outputs, called on inputs of these values."""
        shapes = [tensor.shape for tensor in inputs]
        graph = control_flow_util_v2.get_func_graph(op, shapes, name)
        known = {id(t): v for t, v in zip(graph.inputs, values, strict=True)}
        inside = self.inner(known)
        inside._keep.append(graph)
        graph._calling_operation = op
        return [inside.value(output) for output in graph.outputs]


_NEW_LISTS = frozenset({"TensorListReserve", "EmptyTensorList"})
_ARITHMETIC = frozenset(
    "Mul Add AddV2 Sub FloorDiv Maximum Minimum Pack StridedSlice ConcatV2 Cast "
    "Identity Prod Squeeze ExpandDims GatherV2 Slice Reshape".split()
)


def _placeholder(op: Any) -> Value:
    """The value of what enters a graph and was not given."""
    if op.outputs[0].dtype in (tf.resource, tf.variant):
        return INDEPENDENT
    for external, internal in getattr(op.graph, "captures", ()):
        if internal is op.outputs[0] and isinstance(
            external, tf.__internal__.EagerTensor
        ):
            return INDEPENDENT
    raise NotIndependent("reads a tensor from outside of the model and its inputs")
