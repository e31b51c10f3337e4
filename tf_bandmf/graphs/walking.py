"""Walks through graphs, into the functions, branches and loops that operations call.

A `Scope` is a graph that is walked, with what its inputs are outside. It answers the two
questions that everything else is made of: what stands behind a tensor, and whether it
depends on data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_bandmf.graphs.functions import definition, function_graph
from tf_bandmf.graphs.operations import BRANCHES, CALLS, LOOPS

# What they return depends on shapes alone.
_SHAPES = frozenset({"Shape", "ShapeN", "Rank", "Size", "ZerosLike", "OnesLike"})
_OF_LISTS = frozenset({"TensorListLength", "TensorListElementShape"})
_COPIES = frozenset({"Identity", "IdentityN", "Snapshot", "StopGradient"})
ARGUMENTS = frozenset({"Placeholder", "Arg", "_Arg"})
_function_attributes: dict[str, tuple[str, ...]] = {}


class Scope:
    """A graph that is walked.

    Args:
      data: of inputs of this graph: whether they depend on data, by id. What is not in it
        depends on data if it enters the graph, unless the program holds it already.
      behind: of inputs: the tensor outside that they always are, by id.
      outer: the scope outside.
      decided: whether data decide if this graph runs.
    """

    def __init__(
        self,
        data: Mapping[int, bool],
        behind: Mapping[int, Any] | None = None,
        outer: Scope | None = None,
        decided: bool = False,
    ) -> None:
        self._data = dict(data)
        self._behind = dict(behind or {})
        self._outer = outer
        self._functions: dict[tuple[int, str], tuple[Any, Scope]] = {}
        self._keep: list[Any] = []
        self.decided = decided

    def depends(self, tensor: Any) -> bool:
        """Whether values of a tensor depend on data; its shape is another matter."""
        stack = [tensor]
        while stack:
            current = stack[-1]
            if id(current) in self._data:
                stack.pop()
                continue
            op = current.op
            if op.type in _SHAPES or current.dtype == tf.resource:
                self._note(current, False)
            elif op.type in _OF_LISTS and self._holds_rows(op.inputs[0]):
                self._note(current, False)
            elif op.type in ARGUMENTS:
                self._note(current, held_already(current) is None)
            else:
                needed = [t for t in op.inputs if id(t) not in self._data]
                if needed:
                    stack.extend(needed)
                    continue
                found = any(self._data[id(t)] for t in op.inputs)
                if found and op.type in CALLS:
                    found = self._depends_inside(current)
                self._note(current, found)
            stack.pop()
        return self._data[id(tensor)]

    def _depends_inside(self, tensor: Any) -> bool:
        """Whether a result of functions, branches or a loop depends on data."""
        op, place = tensor.op, tensor.value_index
        if op.type in BRANCHES and self.depends(op.inputs[0]):
            return True
        if op.type in LOOPS:
            graph, body = self.inside(op, op.get_attr("body").name, list(op.inputs))
            return body.depends(graph.inputs[place])
        inner = (self.inside(op, name, given) for name, given in called(op))
        return any(scope.depends(graph.outputs[place]) for graph, scope in inner)

    def _holds_rows(self, tensor: Any) -> bool:
        """Whether a list is the rows of a tensor: its shape says how many, and of what."""
        return bool(self.origin(tensor)[0].op.type == "TensorListFromTensor")

    def _note(self, tensor: Any, found: bool) -> None:
        self._data[id(tensor)] = found
        self._keep.append(tensor)

    def origin(self, tensor: Any) -> tuple[Any, Scope]:
        """What stands behind a tensor: no copy, and no argument, where that is certain."""
        scope = self
        while True:
            if tensor.op.type in _COPIES:
                tensor = tensor.op.inputs[tensor.value_index]
            elif scope._outer is not None and id(tensor) in scope._behind:
                tensor, scope = scope._behind[id(tensor)], scope._outer
            else:
                return tensor, scope

    def inside(self, op: Any, name: str, given: Sequence[Any]) -> tuple[Any, Scope]:
        """The graph of a function that an operation calls, and its scope.

        Args:
          op: the operation, of this graph.
          name: of the function.
          given: what it gets.
        """
        key = (id(op), name)
        if key not in self._functions:
            graph = function_graph(op, name, given)
            self._keep.append(op)
            self._functions[key] = graph, self._scope_of(op, graph, given)
        return self._functions[key]

    def _scope_of(self, op: Any, graph: Any, given: Sequence[Any]) -> Scope:
        choice = list(op.inputs)[: len(op.inputs) - len(given)]
        decided = self.decided or any(self.depends(t) for t in choice)
        data = [self.depends(tensor) for tensor in given]
        same = [True] * len(given)
        if op.type in LOOPS:
            condition, body = (
                function_graph(op, op.get_attr(which).name, given)
                for which in ("cond", "body")
            )
            same = [
                Scope({}).origin(after)[0] is before
                for before, after in zip(body.inputs, body.outputs, strict=True)
            ]
            data = _settled(body, condition, data)
            decided |= Scope(_by_id(condition.inputs, data)).depends(
                condition.outputs[0]
            )
        behind = {
            id(inner): outer
            for inner, outer, is_same in zip(graph.inputs, given, same, strict=True)
            if is_same
        }
        scope = Scope(_by_id(graph.inputs, data), behind, self, decided)
        scope._keep.append(graph)
        return scope


def _settled(body: Any, condition: Any, data: list[bool]) -> list[bool]:
    """What of a loop's state depends on data after any number of rounds."""
    while True:
        scope = Scope(_by_id(body.inputs, data))
        after = [
            before or scope.depends(output)
            for before, output in zip(data, body.outputs, strict=True)
        ]
        # How often the body ran is in all that it changes.
        if Scope(_by_id(condition.inputs, data)).depends(condition.outputs[0]):
            after = [
                found or (scope.origin(output)[0] is not before)
                for found, before, output in zip(
                    after, body.inputs, body.outputs, strict=True
                )
            ]
        if after == data:
            return data
        data = after


def _by_id(tensors: Iterable[Any], values: Iterable[bool]) -> dict[int, bool]:
    return {
        id(tensor): value and tensor.dtype != tf.resource
        for tensor, value in zip(tensors, values, strict=True)
    }


def walk(
    operations: Iterable[Any], scope: Scope, enters: Callable[[Any, str], bool]
) -> Iterator[tuple[Any, Scope]]:
    """Operations of a graph, and of the functions that they call, with their scopes.

    Args:
      operations: of the graph.
      scope: of the graph.
      enters: whether to look into a function, given the operation and its name.
    """
    for op in operations:
        yield op, scope
        for name, given in called(op):
            if enters(op, name):
                graph, inner = scope.inside(op, name, given)
                yield from walk(graph.get_operations(), inner, enters)


def called(op: Any) -> list[tuple[str, list[Any]]]:
    """Functions that an operation calls by name, each with its inputs."""
    if op.type not in _function_attributes:
        _function_attributes[op.type] = function_attributes(op.op_def)
    skipped = 1 if op.type in BRANCHES else 0
    found = []
    for attribute in _function_attributes[op.type]:
        value = op.get_attr(attribute)
        functions = value if isinstance(value, list) else [value]
        found += [(f.name, list(op.inputs)[skipped:]) for f in functions]
    return found


def function_attributes(op_def: Any) -> tuple[str, ...]:
    """Names of an operation's attributes that are functions."""
    return tuple(a.name for a in op_def.attr if a.type in ("func", "list(func)"))


def has_node(
    graph: Any,
    name: str,
    matches: Callable[[Any], bool],
    seen: set[str] | None = None,
) -> bool:
    """Whether a node matches of a function or of one that it calls.

    Args:
      graph: that knows the function, None in eager code; of one that it does not know
        anything is possible.
      name: of the function.
      matches: asked about nodes.
      seen: functions that are searched already.
    """
    seen = set() if seen is None else seen
    if name in seen:
        return False
    seen.add(name)
    found = definition(graph, name)
    if found is None:
        return True
    return any(matches(node) for node in found.node_def) or any(
        has_node(graph, function.name, matches, seen)
        for node in found.node_def
        for value in node.attr.values()
        for function in (value.func, *value.list.func)
        if function.name
    )


def held_already(tensor: Any) -> Any | None:
    """The tensor that the program holds already behind an input of a graph, or None."""
    for external, internal in getattr(tensor.graph, "captures", ()):
        if internal is tensor:
            is_held = isinstance(external, tf.__internal__.EagerTensor)
            return external if is_held else None
    return None


def calling_operation(op: Any, graph: Any) -> Any | None:
    """The operation of a graph within which another one is, at any depth; or None."""
    while op is not None and op.graph is not graph:
        op = getattr(op.graph, "_calling_operation", None)
    return op


def live(
    operations: Sequence[Any],
    results: Iterable[Any],
    made_from: Mapping[int, Sequence[Any]],
) -> list[Any]:
    """Operations that run: results need them, or they act by themselves.

    Args:
      operations: of one graph, in order.
      results: tensors that are wanted.
      made_from: of tensors, by id: those that stand for what they were computed from.
    """
    acting = [op for op in operations if op.op_def and op.op_def.is_stateful]
    pending = [*results, *(tensor for op in acting for tensor in op.inputs)]
    found = {id(op) for op in acting}
    seen: set[int] = set()
    while pending:
        tensor = pending.pop()
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        if id(tensor) in made_from:
            pending += made_from[id(tensor)]
            continue
        op = tensor.op
        if id(op) not in found or op.op_def.is_stateful:
            found.add(id(op))
            pending += op.inputs
            # Nothing asks for the outputs of what only has to come before.
            for before in op.control_inputs:
                found.add(id(before))
                pending += before.inputs
    return [op for op in operations if id(op) in found]
