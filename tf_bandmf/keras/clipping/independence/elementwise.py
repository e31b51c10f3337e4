"""Operations that combine entries at the same place, after broadcasting."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tf_bandmf.graphs.shapes import shape_of
from tf_bandmf.graphs.sizes import ARITHMETIC, BINARY, GRADIENTS, UNARY
from tf_bandmf.keras.clipping.independence import sizes
from tf_bandmf.keras.clipping.independence.domain import (
    INDEPENDENT,
    Kind,
    NotIndependent,
    Value,
    mixes,
    per_example,
)
from tf_bandmf.keras.clipping.independence.evaluation import Node, transfer
from tf_bandmf.keras.clipping.independence.sizes import Content, Dim, as_tuple


@transfer("Identity", "StopGradient", "PreventGradient", "EnsureShape", "Snapshot")
def _same(node: Node) -> Value:
    return node.values[0]


@transfer("IdentityN", "XlaOptimizationBarrier")
def _same_each(node: Node) -> list[Value]:
    return list(node.values)


@transfer("PlaceholderWithDefault")
def _default(node: Node) -> Value:
    return dataclasses.replace(node.values[0], content=None)


@transfer("Cast")
def _cast(node: Node) -> Value:
    (value,) = node.values
    if value.kind is Kind.INDEX:
        raise NotIndependent("computes with the positions of examples in the batch")
    return dataclasses.replace(value, content=node.content(0))


@transfer("Bitcast")
def _bitcast(node: Node) -> Value:
    if node.op.inputs[0].dtype.size != node.op.outputs[0].dtype.size:
        raise NotIndependent("splits or joins numbers")
    return _each_entry(node)


@transfer("Neg", *UNARY)
def _each_entry(node: Node) -> Value:
    first, *others = node.values
    if not all(other.independent for other in others):
        return aligned(node, range(len(node.values)))
    if first.kind is Kind.INDEX:
        raise NotIndependent("computes with the positions of examples in the batch")
    if first.kind is Kind.LIST:
        raise NotIndependent("works on a list of tensors")
    return dataclasses.replace(first, content=None)


@transfer(*ARITHMETIC)
def _arithmetic(node: Node) -> Value:
    kinds = {value.kind for value in node.values}
    if kinds <= {Kind.INDEPENDENT, Kind.SIZE}:
        content = _combined(node)
        if content is not None and not sizes.depends_on_batch(content):
            return dataclasses.replace(INDEPENDENT, content=content)
        kind = Kind.SIZE if Kind.SIZE in kinds else Kind.INDEPENDENT
        return Value(kind, content=content)
    return aligned(node, range(len(node.values)))


@transfer("AddN", *BINARY)
def _each_entry_of_several(node: Node) -> Value:
    kinds = {value.kind for value in node.values}
    if kinds <= {Kind.INDEPENDENT, Kind.SIZE}:
        return Value(Kind.SIZE)
    return aligned(node, range(len(node.values)))


@transfer("Select")
def _select(node: Node) -> Value:
    # A vector as condition of tensors of higher rank selects rows.
    condition, first = node.values[:2]
    rank = node.rank(1)
    if node.rank(0) == rank or node.rank(0) == 0:
        return aligned(node, range(3))
    if node.rank(0) == 1 and not condition.independent:
        axes = {v.axis for v in node.values if v.per_example}
        if axes == {0} and all(v.per_example for v in node.values):
            return dataclasses.replace(first, content=None)
    raise NotIndependent("selects rows in a way that is not known here")


def _combined(node: Node) -> Content:
    first, second = (as_tuple(node.content(index)) for index in (0, 1))
    if first is None or second is None:
        return None
    scalar = isinstance(node.content(0), Dim) and isinstance(node.content(1), Dim)
    length = max(len(first), len(second))
    if {len(first), len(second)} - {1, length}:
        return None
    first, second = (x * length if len(x) == 1 else x for x in (first, second))
    entries = tuple(
        sizes.combine(node.op.type, a, b) for a, b in zip(first, second, strict=True)
    )
    return entries[0] if scalar else entries


@transfer("BroadcastArgs")
def _broadcast_shape(node: Node) -> Value:
    shapes = [as_tuple(node.content(index)) for index in (0, 1)]
    if shapes[0] is None or shapes[1] is None:
        return Value(Kind.SIZE)
    length = max(len(shape) for shape in shapes if shape is not None)
    first, second = (
        (sizes.ONE,) * (length - len(shape)) + shape
        for shape in shapes
        if shape is not None
    )
    entries = []
    for a, b in zip(first, second, strict=True):
        if a == b or b == sizes.ONE:
            entries.append(a)
        elif a == sizes.ONE:
            entries.append(b)
        else:
            entries.append(sizes.unknown(a.depends_on_batch or b.depends_on_batch))
    return Value(Kind.SIZE, content=tuple(entries))


@transfer(*GRADIENTS)
def _gradient(node: Node) -> Value:
    return aligned(node, range(len(node.values)))


def aligned(node: Node, indices: Sequence[int]) -> Value:
    """The value of inputs combined entry by entry, broadcast to a common shape.

    Raises:
      NotIndependent: if they have the batch at different places.
    """
    outputs_rank = max(node.rank(index) for index in indices)
    place: int | None = None  # From the last axis: 1 is the last one.
    rows: Dim | None = None
    for index in indices:
        value = node.values[index]
        if value.kind is Kind.INDEX:
            raise NotIndependent("computes with the positions of examples in the batch")
        if value.kind is Kind.SIZE:
            raise NotIndependent(
                "computes with the number of examples in the batch, which other "
                "examples decide"
            )
        if value.independent:
            continue
        if not value.per_example:
            raise mixes("combines examples with a sum over the batch, or parts of it")
        here = node.rank(index) - value.axis
        if place is not None and here != place:
            raise mixes("combines each example with others of the batch")
        place = here
        if rows is not None and value.rows != rows:
            raise NotIndependent("combines rows that are split in different ways")
        rows = value.rows
    if place is None or rows is None:
        return INDEPENDENT
    for index in indices:
        value = node.values[index]
        if value.independent and node.rank(index) >= place:
            if shape_of(node.op.inputs[index])[-place] != 1:
                raise NotIndependent(POSITIONS)
    return per_example(outputs_rank - place, rows)


POSITIONS = (
    "gives each example a value that depends on its position in the batch, not on the "
    "example"
)
