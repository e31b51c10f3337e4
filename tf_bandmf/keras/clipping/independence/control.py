"""Functions, loops, branches, lists of tensors; random numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tf_bandmf.graphs.shapes import shape_of
from tf_bandmf.keras.clipping.independence import sizes
from tf_bandmf.keras.clipping.independence.domain import (
    INDEPENDENT,
    Kind,
    NotIndependent,
    Value,
    join,
    mixes,
    per_example,
)
from tf_bandmf.keras.clipping.independence.elementwise import POSITIONS
from tf_bandmf.keras.clipping.independence.evaluation import Node, transfer
from tf_bandmf.keras.clipping.independence.filling import filled
from tf_bandmf.keras.clipping.independence.layout import needs_rows
from tf_bandmf.keras.clipping.independence.row_loops import (
    holds_rows,
    one_row_a_round,
)
from tf_bandmf.keras.clipping.independence.sizes import BATCH, Dim, as_tuple

_MOST_ROUNDS = 8


@transfer("PartitionedCall", "StatefulPartitionedCall")
def _call(node: Node) -> list[Value]:
    name = node.attr("f").name
    return node.graph.call(node.op, name, _given(node), list(node.op.inputs))


def _given(node: Node) -> list[Value]:
    """Values of inputs, with the integers that are not known within a function."""
    found = []
    for index, value in enumerate(node.values):
        content = node.content(index)
        if value.independent and content is not None:
            depends = sizes.depends_on_batch(content)
            kind = Kind.SIZE if depends else Kind.INDEPENDENT
            value = dataclasses.replace(value, kind=kind, content=content)
        found.append(value)
    return found


@transfer("If", "StatelessIf")
def _if(node: Node) -> list[Value]:
    names = [node.attr("then_branch").name, node.attr("else_branch").name]
    return _branches(node, names)


@transfer("Case", "StatelessCase")
def _case(node: Node) -> list[Value]:
    return _branches(node, [branch.name for branch in node.attr("branches")])


def _branches(node: Node, names: Sequence[str]) -> list[Value]:
    if not node.values[0].independent:
        raise mixes("takes a branch for the whole batch that depends on the batch")
    inputs = list(node.op.inputs)[1:]
    results = [
        node.graph.call(node.op, name, _given(node)[1:], inputs) for name in names
    ]
    joined = results[0]
    for result in results[1:]:
        joined = [
            _join_outputs(first, second, output)
            for first, second, output in zip(
                joined, result, node.op.outputs, strict=True
            )
        ]
    return joined


def _join_outputs(first: Value, second: Value, output: Any) -> Value:
    # A number that does not depend on data fits everything.
    if first.kind is not second.kind and shape_of(output).rank == 0:
        raise NotIndependent("returns a number that depends on data in one case only")
    return join(first, second)


@transfer("While", "StatelessWhile")
def _while(node: Node) -> list[Value]:
    inputs = list(node.op.inputs)
    values = list(node.values)
    if any(holds_rows(value) for value in values):
        return one_row_a_round(node)
    condition, body = node.attr("cond").name, node.attr("body").name
    for _ in range(_MOST_ROUNDS):
        results = node.graph.call(node.op, body, values, inputs)
        joined = [join(a, b) for a, b in zip(values, results, strict=True)]
        if joined == values:
            break
        values = joined
    else:
        raise NotIndependent("is a loop whose state does not settle")
    (goes_on,) = node.graph.call(node.op, condition, values, inputs)
    if not goes_on.independent:
        raise mixes(
            "loops over the examples, or until a condition holds for the whole batch"
        )
    return values


@transfer("TensorListReserve", "EmptyTensorList")
def _new_list(node: Node) -> Value:
    if node.op.type == "TensorListReserve":
        if node.content(1) == BATCH:
            return Value(Kind.LIST, rows=BATCH)
        if not node.values[1].independent:
            raise mixes("makes a list of the examples of the batch")
    return Value(Kind.LIST)


@transfer("TensorListFromTensor")
def _to_list(node: Node) -> Value:
    value = node.values[0]
    rows = needs_rows(value)
    if value.axis == 0:
        raise mixes("makes a list of the examples of the batch")
    return Value(Kind.LIST, element=per_example(value.axis - 1, rows))


@transfer("TensorListStack", "TensorListGather")
def _from_list(node: Node) -> Value:
    if node.op.type == "TensorListStack" and holds_rows(node.values[0]):
        if node.values[0].element is None or not node.values[1].independent:
            raise NotIndependent("reads a list of examples that is not full")
        return per_example(0, BATCH, node.sizes_of_others())
    element = _element(node)
    if element.independent:
        return INDEPENDENT
    rows = needs_rows(element)
    if node.op.type == "TensorListGather" and not node.values[1].independent:
        raise NotIndependent("takes entries that depend on data out of a list")
    return per_example(element.axis + 1, rows, _sizes(node, element))


def _sizes(node: Node, element: Value) -> tuple[Dim, ...] | None:
    """The shape of what comes out of a list, which may be made by the asked-for shape.

    Raises:
      NotIndependent: if an axis that is not that of the batch may depend on its size.
    """
    index = -1 if node.op.type != "TensorListStack" else 1
    if not node.values[index].independent:
        entries = as_tuple(
            node.graph.content(node.op.inputs[index], node.values[index])
        )
        if entries is None or not element.per_example:
            raise NotIndependent("asks for entries of a shape that is not known")
        others = [dim for axis, dim in enumerate(entries) if axis != element.axis]
        if any(dim.depends_on_batch for dim in others):
            raise mixes("asks for entries of a shape with the number of examples in it")
    return node.sizes_of_others(len(node.op.outputs) - 1)


@transfer("TensorListGetItem")
def _item(node: Node) -> Value:
    if not node.values[1].independent:
        raise NotIndependent("takes an entry that depends on data out of a list")
    element = _element(node)
    return dataclasses.replace(element, shape=_sizes(node, element))


@transfer("TensorListSetItem", "TensorListPushBack")
def _set_item(node: Node) -> Value:
    push = node.op.type == "TensorListPushBack"
    if not push and not node.values[1].independent:
        raise NotIndependent("changes an entry that depends on data")
    return _with(node.values[0], node.values[1 if push else 2])


def _with(value: Value, item: Value) -> Value:
    _refuse_rows(value)
    old = Value(Kind.LIST) if value.independent else value
    if old.kind is not Kind.LIST or item.kind not in (
        Kind.PER_EXAMPLE,
        Kind.INDEPENDENT,
    ):
        raise NotIndependent("is not known for such tensors")
    item = dataclasses.replace(item, content=None, shape=None)
    return Value(
        Kind.LIST, element=item if old.element is None else join(old.element, item)
    )


@transfer("TensorListPopBack")
def _pop(node: Node) -> list[Value]:
    element = _element(node)
    return [node.values[0], dataclasses.replace(element, shape=_sizes(node, element))]


@transfer("TensorListLength")
def _length(node: Node) -> Value:
    _refuse_rows(node.values[0])
    return INDEPENDENT


@transfer("TensorListResize")
def _resize(node: Node) -> Value:
    if not node.values[1].independent:
        raise mixes("makes a list of the examples of the batch")
    _refuse_rows(node.values[0])
    return node.values[0]


def _refuse_rows(value: Value) -> None:
    if holds_rows(value):
        raise mixes("works on a list of the examples of the batch")


def _element(node: Node) -> Value:
    value = node.values[0]
    _refuse_rows(value)
    if value.independent:
        return INDEPENDENT
    if value.kind is not Kind.LIST or value.element is None:
        raise NotIndependent("reads a list that is empty or not known")
    return value.element


@transfer(
    "RandomUniform",
    "RandomUniformInt",
    "RandomStandardNormal",
    "TruncatedNormal",
    "StatelessRandomUniform",
    "StatelessRandomUniformV2",
    "StatelessRandomUniformInt",
    "StatelessRandomUniformIntV2",
    "StatelessRandomUniformFullInt",
    "StatelessRandomUniformFullIntV2",
    "StatelessRandomNormal",
    "StatelessRandomNormalV2",
    "StatelessTruncatedNormal",
    "StatelessTruncatedNormalV2",
)
def _random(node: Node) -> Value:
    if not all(value.independent for value in node.values[1:]):
        raise NotIndependent("draws random numbers with parameters that depend on data")
    result = filled(node.content(0))
    if result.per_example and node.op.type.startswith("Stateless"):
        # The seed; with later operations, a key and a counter.
        seeds = node.values[1 : 3 if node.op.type.endswith("V2") else 2]
        if not any(seed.fresh or seed.state for seed in seeds):
            raise NotIndependent(f"{POSITIONS}: its seed is the same at each step")
    return result


@transfer("StatefulUniform", "StatefulStandardNormalV2", "StatefulTruncatedNormal")
def _random_of_generator(node: Node) -> Value:
    return filled(node.content(2))
