"""Loops over the examples: round i reads row i of its inputs and writes entry i of lists.

So TensorFlow vectorizes an operation that it has no conversion for. What such a loop does
to a row is no matter: it is given no other one.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from tf_bandmf.graphs.functions import function_graph
from tf_bandmf.graphs.operations import OPERATIONS
from tf_bandmf.graphs.shapes import shape_of
from tf_bandmf.graphs.walking import Scope, called
from tf_bandmf.keras.clipping.independence import state
from tf_bandmf.keras.clipping.independence.constants import constant_value
from tf_bandmf.keras.clipping.independence.custom_gradients import refuse_unknown
from tf_bandmf.keras.clipping.independence.domain import (
    INDEPENDENT,
    Kind,
    NotIndependent,
    Value,
    mixes,
)
from tf_bandmf.keras.clipping.independence.evaluation import Node
from tf_bandmf.keras.clipping.independence.sizes import BATCH, Dim


class _In(enum.Enum):
    """What a tensor is in a round."""

    FREE = "the same in each round and for all data"
    COUNTER = "the number of the round"
    COUNTED = "made of the number of the round"
    COUNT = "the number of examples"
    EXAMPLES = "all examples"
    ROW = "of the example of the round"
    LIST = "a list of what is made of each example"
    WRITTEN = "that list after the round"


def holds_rows(value: Value) -> bool:
    """Whether a value is a list with an entry for each example."""
    return value.kind is Kind.LIST and value.rows is not None


def one_row_a_round(node: Node) -> list[Value]:
    """The state of a loop over the examples, after it.

    Raises:
      NotIndependent: if a round does anything else than to read its row, to compute, and
        to write its entries.
    """
    condition, body = (
        function_graph(node.op, node.attr(name).name, list(node.op.inputs))
        for name in ("cond", "body")
    )
    kinds = [_kind(node, body, place, value) for place, value in enumerate(node.values)]
    _needs_all_rounds(node, condition, kinds)
    found = {id(t): kind for t, kind in zip(body.inputs, kinds, strict=True)}
    lists: dict[int, Any] = {
        id(t): t for t, kind in zip(body.inputs, kinds, strict=True) if kind is _In.LIST
    }
    results = []
    for before, after, kind, value in zip(
        body.inputs, body.outputs, kinds, node.values, strict=True
    ):
        if kind is _In.LIST:
            is_own = _evaluated(after, found, lists) is _In.WRITTEN
            if not is_own or lists[id(after)] is not before:
                raise mixes("does not write one entry for each example")
            value = Value(Kind.LIST, rows=BATCH, element=INDEPENDENT)
        elif kind is _In.COUNTER:
            value = Value(Kind.SIZE)
        results.append(value)
    return results


def _kind(node: Node, body: Any, place: int, value: Value) -> _In:
    if holds_rows(value):
        if value.element is not None:
            raise mixes("writes over a list of examples")
        return _In.LIST
    before, after = body.inputs[place], body.outputs[place]
    if Scope({}).origin(after)[0] is before:
        if value.independent or value.kind is Kind.SIZE:
            return _In.FREE if value.independent else _In.COUNT
        if value.one_row_each:
            return _In.EXAMPLES
        raise NotIndependent("is a loop over the examples that reads another tensor")
    end = Scope({}).origin(after)[0].op
    counts = end.type in ("Add", "AddV2") and any(
        one is before and constant_value(other) == 1
        for one, other in (tuple(end.inputs), tuple(end.inputs)[::-1])
    )
    if not counts or node.content(place) != Dim(0) or shape_of(before).rank != 0:
        raise NotIndependent("is a loop over the examples that keeps something")
    return _In.COUNTER


def _needs_all_rounds(node: Node, condition: Any, kinds: list[_In]) -> None:
    """Asks that there is a round for each example, and no other one."""
    places = {id(tensor): place for place, tensor in enumerate(condition.inputs)}
    (goes_on,) = condition.outputs
    less = Scope({}).origin(goes_on)[0].op
    if less.type != "Less":
        raise NotIndependent("is a loop over the examples with another condition")
    counter, limit = (Scope({}).origin(tensor)[0] for tensor in less.inputs)
    place = places.get(id(counter))
    is_counter = place is not None and kinds[place] is _In.COUNTER
    known = (
        node.content(places[id(limit)])
        if id(limit) in places
        else node.graph.content(limit, INDEPENDENT)
    )
    if not is_counter or known != BATCH:
        raise NotIndependent("is a loop over another number than that of the examples")


def _evaluated(tensor: Any, found: dict[int, _In], lists: dict[int, Any]) -> _In:
    stack = [tensor]
    while stack:
        current = stack[-1]
        if id(current) in found:
            stack.pop()
            continue
        needed = [t for t in current.op.inputs if id(t) not in found]
        if needed:
            stack.extend(needed)
            continue
        kind = _result(current.op, found)
        for output in current.op.outputs:
            found[id(output)] = kind
            if kind in (_In.LIST, _In.WRITTEN):
                lists[id(output)] = lists[id(current.op.inputs[0])]
        stack.pop()
    return found[id(tensor)]


def _result(op: Any, found: Mapping[int, _In]) -> _In:
    kinds = [found[id(tensor)] for tensor in op.inputs]
    if op.type == "Identity":
        return kinds[0]
    if op.type == "TensorListSetItem" and kinds[0] is _In.LIST:
        if kinds[1] is _In.COUNTER and kinds[2] in (_In.ROW, _In.FREE):
            return _In.WRITTEN
    elif op.type == "GatherV2" and kinds[0] is _In.EXAMPLES:
        axis = constant_value(op.inputs[2])
        if kinds[1] is _In.COUNTER and axis == 0 and not op.get_attr("batch_dims"):
            return _In.ROW
    elif op.type == "StridedSlice" and kinds[0] is _In.EXAMPLES:
        if _takes_row(op, found):
            return _In.ROW
    elif set(kinds) <= {_In.FREE, _In.ROW}:
        state.refuse_host_operation(op)
        refuse_unknown(op)
        # Entries of a list whose sizes depend on values cannot be put side by side.
        varies = OPERATIONS[op.type].varies
        if not called(op) and not state.is_random(op.type) and not varies:
            return _In.ROW if _In.ROW in kinds else _In.FREE
    elif set(kinds) <= {_In.FREE, _In.COUNTER, _In.COUNTED}:
        if op.type in ("Add", "AddV2", "Pack"):
            return _In.COUNTED
    raise NotIndependent(f"has a loop over the examples with {op.type} in it")


def _takes_row(op: Any, kinds: Mapping[int, _In]) -> bool:
    """Whether a slice is the row of the round: x[i], x[i, ...]."""
    _, begin, end, strides = op.inputs
    if begin.op.type != "Pack" or end.op.type != "Pack":
        return False
    others = [*begin.op.inputs[1:], *end.op.inputs[1:], strides]
    masks = {name: int(op.get_attr(f"{name}_mask")) & 1 for name in _MASKS}
    return (
        kinds[id(begin.op.inputs[0])] is _In.COUNTER
        and all(kinds[id(tensor)] is _In.FREE for tensor in others)
        and masks == {name: int(name == "shrink_axis") for name in _MASKS}
    )


_MASKS = ("begin", "ellipsis", "new_axis", "shrink_axis")
