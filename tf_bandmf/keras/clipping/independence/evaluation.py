"""Evaluation of a graph on abstract values.

From the tensors in question back to the inputs of the model, every operation on the way
is looked up in the table of operations whose semantics are known here. What is not in
the table, or not in a form that the table knows, is an error: unknown is never safe.

Where a value is stored its symbolic shape is found, and checked: an axis that is not that
of the examples and has their number in it would be a way from one example to all others.
No transfer function has to think of that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from tf_bandmf.graphs.functions import function_graph
from tf_bandmf.graphs.operations import LOOPS, OPERATIONS
from tf_bandmf.graphs.shapes import InferredShapes, believed, refine, shape_of
from tf_bandmf.graphs.walking import ARGUMENTS, called, held_already
from tf_bandmf.keras.clipping.independence import sizes, state
from tf_bandmf.keras.clipping.independence.constants import constant_value
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
LONGEST_SHAPE = 32


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
        rank = shape_of(self.op.inputs[index]).rank
        if rank is None:
            raise NotIndependent("works on a tensor of unknown rank")
        return int(rank)

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

    def sizes_of_others(self, index: int = 0) -> tuple[Dim, ...] | None:
        """A shape for an output whose axes do not depend on the number of examples.

        But for that of the batch. It is for operations that get that number and are
        known to use it on that axis alone.
        """
        rank = shape_of(self.op.outputs[index]).rank
        return None if rank is None else tuple(sizes.unknown() for _ in range(rank))


Transfer = Callable[[Node], "Value | list[Value]"]
TABLE: dict[str, Transfer] = {}
_Function = TypeVar("_Function", bound=Transfer)


def transfer(*types: str) -> Callable[[_Function], _Function]:
    """Registers what operations of these types do to abstract values."""

    def register(function: _Function) -> _Function:
        for name in types:
            assert name not in TABLE and name in OPERATIONS, name
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
      shapes: those of the graph, where it is not one that was made anew.
    """

    def __init__(
        self,
        known: Mapping[int, Value],
        pending: Mapping[int, tuple[Sequence[Any], Callable[[list[Value]], Value]]]
        | None = None,
        *,
        static_batch: int | None = None,
        shapes: InferredShapes | None = None,
    ) -> None:
        self._shapes = shapes
        self._values = dict(known)
        self._pending = dict(pending or {})
        self._static = static_batch
        self._keep: list[Any] = []

    def value(self, tensor: tf.Tensor) -> Value:
        """The value of a tensor.

        Raises:
          NotIndependent: if it may depend on several examples, with the operation.
        """
        if self._shapes is None:
            return self._value(tensor)
        with believed(self._shapes):
            return self._value(tensor)

    def _value(self, tensor: tf.Tensor) -> Value:
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
                    # What is known here is known with its shape.
                    self._set(current, pending[1](values), ())
                except NotIndependent as error:
                    error.operation = current.op
                    raise
            else:
                self._operation(current.op, values)
            stack.pop()
        return self._values[id(tensor)]

    def _set(
        self, tensor: tf.Tensor, value: Value, inputs: Sequence[Value] = ()
    ) -> None:
        """Stores a value that was computed from others, with its symbolic shape.

        Raises:
          NotIndependent: if the number of examples may be in an axis that is not theirs.
        """
        found = self._with_shape(tensor, value, inputs)
        self._values[id(tensor)] = found
        self._keep.append(tensor)
        if found.shape is not None:
            known = [None if d.symbols else d.factor for d in found.shape]
            refine(tensor, [None if self._is_multiple(n or 0) else n for n in known])

    def _with_shape(
        self, tensor: tf.Tensor, value: Value, inputs: Sequence[Value]
    ) -> Value:
        static = shape_of(tensor)
        if value.kind is Kind.LIST or static.rank is None:
            return dataclasses.replace(value, shape=None)
        found = value.shape
        if found is None or len(found) != static.rank:
            found = (None,) * static.rank
        numbers = any(v.kind is Kind.SIZE for v in inputs)
        dims: list[Dim] = []
        for axis, (size, given) in enumerate(zip(static, found, strict=True)):
            is_batch = axis == value.axis and value.kind in _WITH_ROWS
            if is_batch:
                assert value.rows is not None
                dims.append(value.rows)
            elif size is not None and not self._is_multiple(size):
                # The number of examples is not known while this graph is made.
                dims.append(Dim(int(size)))
            elif value.kind is Kind.SIZE:
                dims.append(given or sizes.unknown(depends_on_batch=True))
            elif given is not None and not given.depends_on_batch:
                dims.append(given)
            elif given is not None or numbers:
                raise NotIndependent(
                    "gives each example a shape that depends on the number of examples",
                    mixes=given is not None,
                )
            else:
                dims.append(sizes.unknown() if size is None else Dim(int(size)))
        return dataclasses.replace(value, shape=tuple(dims))

    def _is_multiple(self, size: int) -> bool:
        """Whether a size may be one of the batch that has been made for the trace."""
        return self._static is not None and size > 0 and size % self._static == 0

    def _operation(self, op: Any, values: list[Value]) -> None:
        try:
            _refuse_claims(op)
            results = self._results(op, tuple(values))
        except NotIndependent as error:
            if error.operation is None:
                error.operation = op
            raise
        # What a function returns was looked at where it was computed.
        inputs = () if called(op) else values
        known = () if op.type in _SAME_SHAPE else [v.shape for v in values]
        for output, result in zip(op.outputs, results, strict=True):
            if any(result.shape is shape for shape in known):
                # That is the shape of an input of the result, not of the result.
                result = dataclasses.replace(result, shape=None)
            # What is given stays: the output of a layer that the user vouches for.
            if id(output) not in self._values and id(output) not in self._pending:
                self._set(output, self._with_static_batch(output, result), inputs)

    def _with_static_batch(self, tensor: tf.Tensor, value: Value) -> Value:
        """Takes constants of the size of the batch for what they are made for.

        Only where the batch size is a number that occurs nowhere else: there, shapes are
        constants. What follows from it is shown again where the batch size is unknown.
        """
        if self._static is None or not value.independent or value.content is not None:
            return value
        static = shape_of(tensor)
        shape = static.as_list() if static.rank else []
        dims = [self.dim(size) if size else sizes.ONE for size in shape]
        axes = [axis for axis, dim in enumerate(dims) if dim.is_rows]
        return per_example(axes[0], dims[axes[0]]) if len(axes) == 1 else value

    def _results(self, op: Any, values: tuple[Value, ...]) -> list[Value]:
        if op.type in ARGUMENTS:
            return [_placeholder(op)]
        if all(v.independent for v in values) and op.type not in _NEW_LISTS:
            # What functions inside do to state is searched for by itself.
            state.refuse_host_operation(op)
            fresh, counted = state.freshness(op, values)
            return [
                dataclasses.replace(
                    INDEPENDENT, content=content, fresh=fresh, state=counted
                )
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
        if not output.dtype.is_integer or shape_of(output).rank not in (0, 1):
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
        static = shape_of(tensor)
        rank = static.rank
        if rank is None or rank > 1:
            return None
        if rank == 1 and (static[0] or 0) > LONGEST_SHAPE:
            return None
        constant = constant_value(tensor)
        if constant is None:
            return None
        if rank == 0:
            return self.dim(int(constant))
        return tuple(self.dim(int(entry)) for entry in constant)

    def dim(self, size: int) -> Dim:
        """A constant as a symbolic size."""
        if self._static is not None and self._is_multiple(size):
            return Dim(size // self._static) * BATCH
        return Dim(size)

    def shape(self, tensor: tf.Tensor, value: Value) -> tuple[Dim, ...]:
        """Symbolic shape of a tensor."""
        if shape_of(tensor).rank is None:
            raise NotIndependent("works on a tensor of unknown rank")
        if value.shape is None:
            value = self._with_shape(tensor, value, ())
            self._values[id(tensor)] = value
            self._keep.append(tensor)
        assert value.shape is not None
        return value.shape

    def inner(self, values: Mapping[int, Value]) -> Evaluation:
        """An evaluation of a function's graph."""
        return Evaluation(values, static_batch=self._static)

    def call(
        self, op: Any, name: str, values: Sequence[Value], inputs: Sequence[Any]
    ) -> list[Value]:
        """Values of a function's outputs, called on inputs of these values."""
        graph = function_graph(op, name, inputs)
        # Sizes of a loop's state may be others in each round.
        known = {
            id(t): dataclasses.replace(v, shape=None)
            for t, v in zip(graph.inputs, values, strict=True)
        }
        inside = self.inner(known)
        inside._keep.append(graph)
        return [inside.value(output) for output in graph.outputs]


_WITH_ROWS = (Kind.PER_EXAMPLE, Kind.INDEX, Kind.BLOCKS)
_SAME_SHAPE = frozenset(
    "Identity IdentityN StopGradient PreventGradient Snapshot "
    "XlaOptimizationBarrier".split()
)
_NEW_LISTS = frozenset({"TensorListReserve", "EmptyTensorList"})
_ARITHMETIC = frozenset(
    "Mul Add AddV2 Sub FloorDiv Maximum Minimum Pack StridedSlice ConcatV2 Cast "
    "Identity Prod Max Min Squeeze ExpandDims GatherV2 Slice Reshape Range "
    "BroadcastArgs".split()
)


def _refuse_claims(op: Any) -> None:
    """Refuses shapes that an operation says in an attribute, and that do not follow.

    TensorFlow hands those of functions on from the graph in which a function was written,
    with what `set_shape` said there, perhaps before this trace began.

    Raises:
      NotIndependent: if there is one.
    """
    if not any(shape_of(output).rank for output in op.outputs):
        return
    if op.type == "PlaceholderWithDefault" and not _follows(
        shape_of(op.outputs[0]), shape_of(op.inputs[0])
    ):
        raise NotIndependent(
            f"says that its result has shape {shape_of(op.outputs[0])}, which nothing "
            "checks: use `tf.ensure_shape`",
            op,
        )
    for name, given in called(op):
        if op.type in LOOPS and name != op.get_attr("body").name:
            continue
        graph = function_graph(op, name, given)
        # What holds in each round of a loop is what goes into one.
        returned = graph.inputs if op.type in LOOPS else graph.outputs
        for output, inside in zip(op.outputs, returned, strict=True):
            if not _follows(shape_of(output), shape_of(inside)):
                raise NotIndependent(
                    f"returns a tensor of shape {shape_of(output)} from a function in "
                    f"which nothing makes it so: use `tf.ensure_shape`, not `set_shape`",
                    op,
                )


def _follows(claimed: tf.TensorShape, known: tf.TensorShape) -> bool:
    """Whether a shape says no more than another one."""
    if claimed.rank is None:
        return True
    return known.rank == claimed.rank and all(
        size is None or size == other
        for size, other in zip(claimed, known, strict=True)
    )


def _placeholder(op: Any) -> Value:
    """The value of what enters a graph and was not given."""
    if op.outputs[0].dtype in (tf.resource, tf.variant):
        return INDEPENDENT
    if held_already(op.outputs[0]) is not None:
        return INDEPENDENT
    raise NotIndependent("reads a tensor from outside of the model and its inputs")
