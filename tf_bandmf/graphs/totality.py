"""Whether values of data can stop a graph, or keep it running for ever.

That a run stops, or goes on, would tell about a record (invariants 5 and 18). A graph of
data is total if each operation that gets data is listed as total, positions are within
bounds on both sides, divisors of integers are no data, tensors whose size depends on
values meet none of another size, and loops that data decide about have a bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import handle_data_util

from tf_bandmf.graphs.bounds import bounds, limit_of, size_of
from tf_bandmf.graphs.functions import function_graph
from tf_bandmf.graphs.operations import LOOPS, OPERATIONS, Operation, operation
from tf_bandmf.graphs.sizes import ASKED, varies
from tf_bandmf.graphs.walking import (
    ARGUMENTS,
    Scope,
    has_node,
    live,
    walk,
)

STOPS = (
    "stops the program for some values of the data: one record would end the training, "
    "and that it ended would tell about it"
)
_ENDLESS = (
    "is a loop whose number of rounds depends on the data, without a bound: one record "
    "could keep it running for ever. Give it `maximum_iterations`"
)
SIZES = (
    "puts together tensors whose sizes depend on values in the data: one record would end "
    "the training where they do not fit"
)


def stopping_operations(
    operations: Sequence[Any],
    scope: Scope,
    results: Sequence[Any],
    made_from: Mapping[int, Sequence[Any]],
) -> Iterator[tuple[Any, str]]:
    """Operations that values of data can stop, with the reason.

    Args:
      operations: of one graph; functions that they call are walked, too.
      scope: of the graph.
      results: what is wanted of it. What nothing needs does not run.
      made_from: of tensors, by id: those that stand for what they were computed from.
    """
    for op, here in walk(live(operations, results, made_from), scope, may_have_stops):
        reason = why_it_stops(op, here)
        if reason is not None:
            yield op, reason
    for result in results:
        if varies(scope.sizes(result)):
            yield result.op, SIZES


def why_it_stops(op: Any, scope: Scope) -> str | None:
    """Why values of data can stop an operation of a scope's graph, or None."""
    known = operation(op.type)
    if known is None:
        return None  # refused for what it may do
    if op.type in LOOPS:
        return None if _ends(op, scope) else _ENDLESS
    if _is_stopped(op, known, scope):
        return STOPS
    return SIZES if scope.may_clash(op) else None


def is_endless(reason: str) -> bool:
    """Whether a reason of `stopping_operations` is that a loop may not end."""
    return reason == _ENDLESS


def may_have_stops(op: Any, name: str, scope: Scope) -> bool:
    """Whether a function has anything that data could stop."""
    if any(varies(scope.sizes(tensor)) for tensor in op.inputs):
        return True

    def matches(node: Any) -> bool:
        known = OPERATIONS.get(node.op)
        return known is None or (
            node.op in LOOPS
            or not known.total
            or known.varies
            or bool(known.stops or known.positions)
            or known.divisor is not None
        )

    return has_node(op.graph, name, matches)


def _is_stopped(op: Any, known: Operation, scope: Scope) -> bool:
    inputs = list(op.inputs)
    if not known.total:
        return any(scope.depends(tensor) for tensor in inputs)
    if op.type == "Assert" and scope.decided:
        return True
    if any(
        scope.depends(inputs[index])
        for index in known.stops
        if -len(inputs) <= index < len(inputs)
        # Sizes of tensors are no negative numbers; if they fit is another question.
        and not (index == ASKED.get(op.type) and varies(scope.asked(op)))
    ):
        return True
    if known.divisor is not None:
        divisor = inputs[known.divisor]
        if inputs[0].dtype.is_integer and scope.depends(divisor):
            least = bounds(divisor, scope).least
            if least is None or least < (op.type != "Pow"):
                return True
    if op.type == "Cast" and inputs[0].dtype == tf.string:
        return scope.depends(inputs[0])
    # In a tensor that may be empty even a constant position may not exist.
    always = op.type == "GatherV2" and varies(scope.sizes(inputs[0]))
    return any(
        (always or scope.depends(inputs[index]))
        and not _is_within(op, inputs[index], scope)
        for index in known.positions
    )


def _is_within(op: Any, positions: Any, scope: Scope) -> bool:
    """Whether positions are within the bounds of what they are positions in."""
    if op.type == "ResourceGatherNd":
        return False
    found = bounds(positions, scope)
    if op.type == "ResourceGather":
        rows = _rows_of_variable(op.inputs[0])
        if rows is None or op.get_attr("batch_dims") != 0:
            return False
        return found.least is not None and found.least >= 0 and found.is_below(rows)
    if op.type.startswith("UnsortedSegment"):
        # What is below 0 is in no segment.
        return found.is_below(limit_of(op.inputs[2], scope))
    if found.least is None or found.least < 0:
        return False
    if op.type == "SparseSoftmaxCrossEntropyWithLogits":
        return found.is_below(size_of(op.inputs[0], -1, scope))
    if op.type in ("GatherV2", "Gather"):
        axis = 0 if op.type == "Gather" else tf.get_static_value(op.inputs[2])
        if axis is None:
            return False
        return found.is_below(size_of(op.inputs[0], int(axis), scope))
    depth = positions.shape[-1] if positions.shape.rank else None
    if depth is None:
        return False
    if op.type == "ScatterNd":
        shape = tf.get_static_value(op.inputs[2], partial=True)
        sizes = None if shape is None else list(shape)[:depth]
        if sizes is None or None in sizes:
            return False
        return all(found.is_below(int(size)) for size in sizes)
    return all(
        found.is_below(size_of(op.inputs[0], axis, scope)) for axis in range(depth)
    )


def _rows_of_variable(handle: Any) -> int | None:
    """The size of the first axis of a variable, if its shape is fixed."""
    data = handle_data_util.get_resource_handle_data(handle)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    shape = tf.TensorShape(data.shape_and_type[0].shape)
    return shape[0] if shape.rank else None


def _ends(op: Any, scope: Scope) -> bool:
    """Whether a loop ends: data do not decide about it, or a counter is bounded."""
    given = list(op.inputs)
    condition, inside = scope.inside(op, op.get_attr("cond").name, given)
    if not inside.depends(condition.outputs[0]):
        return True
    body = function_graph(op, op.get_attr("body").name, given)
    plain = Scope({})
    places = {id(t): i for i, t in enumerate(condition.inputs)}
    pending = [condition.outputs[0]]
    while pending:
        tensor, _ = plain.origin(pending.pop())
        kind = tensor.op.type
        if kind == "LogicalAnd":
            pending += list(tensor.op.inputs)
        elif kind in ("Less", "LessEqual", "Greater", "GreaterEqual"):
            order = 1 if kind.startswith("Less") else -1
            count, limit = list(tensor.op.inputs)[::order]
            if not count.dtype.is_integer or inside.depends(limit):
                continue
            counter = places.get(id(plain.origin(count)[0]))
            fixed = plain.origin(limit)[0]
            if counter is None or not _stays(fixed, places, body):
                continue
            if not scope.depends(given[counter]) and _counts(body, counter):
                return True
    return False


def _stays(tensor: Any, places: dict[int, int], body: Any) -> bool:
    """Whether a tensor of a loop's condition is the same in each round."""
    place = places.get(id(tensor))
    if place is None:
        return tensor.op.type not in ARGUMENTS and all(
            _stays(Scope({}).origin(t)[0], places, body) for t in tensor.op.inputs
        )
    return Scope({}).origin(body.outputs[place])[0] is body.inputs[place]


def _counts(body: Any, place: int) -> bool:
    """Whether a loop's body adds a positive number to a part of its state."""
    after, _ = Scope({}).origin(body.outputs[place])
    if after.op.type not in ("Add", "AddV2"):
        return False
    before = [Scope({}).origin(tensor)[0] for tensor in after.op.inputs]
    for one, other in (before, before[::-1]):
        step = tf.get_static_value(other)
        if one is body.inputs[place] and step is not None and np.all(step > 0):
            return True
    return False
