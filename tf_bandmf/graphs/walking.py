"""Walks through graphs, into the functions, branches and loops that operations call.

A `Scope` is a graph that is walked, with what its inputs are outside. It answers the
questions that everything else is made of: what stands behind a tensor, whether it depends
on data, and whether its size does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_bandmf.graphs.functions import definition, function_graph
from tf_bandmf.graphs.operations import BRANCHES, CALLS, LOOPS, OPERATIONS
from tf_bandmf.graphs.sizes import (
    ASKED,
    DoNotFit,
    Sizes,
    changing,
    own_sizes,
    sizes_after,
    sizes_as_asked,
    varies,
    varying,
)

# What they return depends on the sizes of what they get alone.
_SHAPES = frozenset({"Shape", "ShapeN", "Size", "ZerosLike", "OnesLike"})
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
      sizes: of inputs, by id, where more is known than their static shapes.
    """

    def __init__(
        self,
        data: Mapping[int, bool],
        behind: Mapping[int, Any] | None = None,
        outer: Scope | None = None,
        decided: bool = False,
        sizes: Mapping[int, Sizes] | None = None,
    ) -> None:
        self._data = dict(data)
        self._sizes: dict[int, Sizes] = dict(sizes or {})
        self._sized: bool | None = bool(sizes) or None
        if outer is not None:
            self._sized = outer._sized
        self._behind = dict(behind or {})
        self._outer = outer
        self._functions: dict[tuple[int, str], tuple[Any, Scope]] = {}
        self._keep: list[Any] = []
        self.decided = decided

    def depends(self, tensor: Any) -> bool:
        """Whether values of a tensor depend on data; its size is another matter."""
        stack = [tensor]
        while stack:
            current = stack[-1]
            if id(current) in self._data:
                stack.pop()
                continue
            op = current.op
            if op.type in _SHAPES:
                self._note(current, varies(self.sizes(op.inputs[current.value_index])))
            elif op.type == "Rank" or current.dtype == tf.resource:
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

    def sizes(self, tensor: Any) -> Sizes:
        """Sizes of a tensor, by name; see `tf_bandmf.graphs.sizes`."""
        if self._sized is None:
            self._sized = any(map(_may_vary, tensor.graph.get_operations()))
        if not self._sized:
            return own_sizes(tensor)
        stack = [tensor]
        while stack:
            current = stack[-1]
            if id(current) not in self._sizes:
                needed = [t for t in current.op.inputs if id(t) not in self._sizes]
                if needed:
                    stack.extend(needed)
                    continue
                self._note_sizes(current.op)
            stack.pop()
        return self._sizes[id(tensor)]

    def _note_sizes(self, op: Any) -> None:
        given = [self._sizes[id(tensor)] for tensor in op.inputs]
        self._keep.append(op)
        asked = self.asked(op)
        try:
            if varies(asked):
                found = sizes_as_asked(op, given, asked)
            elif op.type in CALLS:
                found = self._sizes_of_call(op)
            else:
                known = OPERATIONS.get(op.type)
                is_source = known is not None and known.varies
                decided = is_source and any(self.depends(t) for t in op.inputs)
                found = sizes_after(op, given, decided)
        except DoNotFit:
            found = [varying(output, None, None) for output in op.outputs]
        for output, sizes in zip(op.outputs, found, strict=True):
            self._sizes[id(output)] = sizes
            self._keep.append(output)

    def asked(self, op: Any) -> Sizes:
        """Sizes that an operation is told to make, where they are those of tensors."""
        place = ASKED.get(op.type)
        return None if place is None else self._named(op.inputs[place])

    def _named(self, tensor: Any) -> Sizes:
        """The entries of a tensor that are sizes of tensors; None if not all are."""
        tensor, scope = self.origin(tensor)
        op = tensor.op
        if op.type == "Shape":
            sizes = scope.sizes(op.inputs[0])
            return sizes if op.inputs[0].shape.rank == len(sizes or ()) else None
        constant = tf.get_static_value(tensor)
        if constant is not None:
            return tuple(int(size) for size in constant.reshape(-1))
        if op.type == "Pack":
            parts = [scope._named(part) for part in op.inputs]
            scalar = op.inputs[0].shape.rank == 0
            return tuple(p[0] for p in parts if p) if scalar and all(parts) else None
        if op.type == "StridedSlice" and tensor.shape.rank == 0:
            vector = scope._named(op.inputs[0])
            place = tf.get_static_value(op.inputs[1])
            if vector and place is not None and len(place) == 1:
                index = int(place[0]) % len(vector)
                return vector[index : index + 1]
        return None

    def _sizes_of_call(self, op: Any) -> list[Sizes]:
        """Sizes of what functions, branches and loops return."""
        inner = [self.inside(op, name, given) for name, given in called(op)]
        if op.type in LOOPS:
            graph, body = self.inside(op, op.get_attr("body").name, list(op.inputs))
            return [body.sizes(before) for before in graph.inputs]
        found = []
        decided = op.type in BRANCHES and self.depends(op.inputs[0])
        for place, output in enumerate(op.outputs):
            choices = [scope.sizes(graph.outputs[place]) for graph, scope in inner]
            sizes = choices[0]
            for other in choices[1:]:
                if decided or varies(sizes) or varies(other):
                    sizes = varying(output, sizes, other)
                elif sizes != other:
                    sizes = own_sizes(output)
            found.append(sizes)
        return found

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
        sizes = [self.sizes(tensor) for tensor in given]
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
            state = _State(body, condition, same, data, sizes)
            data, sizes = state.settled()
            decided |= state.decided()
        behind = {
            id(inner): outer
            for inner, outer, is_same in zip(graph.inputs, given, same, strict=True)
            if is_same
        }
        known = {id(t): own for t, own in zip(graph.inputs, sizes, strict=True)}
        scope = Scope(_by_id(graph.inputs, data), behind, self, decided, known)
        scope._keep.append(graph)
        return scope


class _State:
    """The state of a loop: what of it depends on data after any number of rounds.

    Args:
      body: graph of a round.
      condition: graph that says whether there is another one.
      same: which parts no round changes.
      data: which parts depend on data before the loop.
      sizes: of the parts before the loop.
    """

    def __init__(
        self,
        body: Any,
        condition: Any,
        same: Sequence[bool],
        data: list[bool],
        sizes: list[Sizes],
    ) -> None:
        self._body, self._condition = body, condition
        self._same, self._data = same, data
        self._sizes = [
            before if is_same else changing(inner, before)
            for before, is_same, inner in zip(sizes, same, body.inputs, strict=True)
        ]

    def settled(self) -> tuple[list[bool], list[Sizes]]:
        """What depends on data, and sizes, in any round."""
        while True:
            scope = self._scope(self._body)
            decided = self.decided()
            before = list(self._data), list(self._sizes)
            for i, output in enumerate(self._body.outputs):
                if self._same[i]:
                    continue
                # How often the body ran is in all that it changes.
                self._data[i] |= scope.depends(output) or decided
                after = scope.sizes(output)
                if decided or varies(after):
                    self._sizes[i] = varying(
                        self._body.inputs[i], self._sizes[i], after
                    )
            if before == (self._data, self._sizes):
                return self._data, self._sizes

    def decided(self) -> bool:
        """Whether data decide about the number of rounds."""
        return self._scope(self._condition).depends(self._condition.outputs[0])

    def _scope(self, graph: Any) -> Scope:
        sizes = {id(t): own for t, own in zip(graph.inputs, self._sizes, strict=True)}
        return Scope(_by_id(graph.inputs, self._data), sizes=sizes)


def _may_vary(op: Any) -> bool:
    """Whether values may decide about the size of what an operation returns."""

    def matches(node: Any) -> bool:
        known = OPERATIONS.get(node.op)
        chosen = node.op in BRANCHES or node.op in LOOPS
        return chosen or (known is not None and known.varies)

    return matches(op.node_def) or any(
        has_node(op.graph, name, matches) for name, _ in called(op)
    )


def _by_id(tensors: Iterable[Any], values: Iterable[bool]) -> dict[int, bool]:
    return {
        id(tensor): value and tensor.dtype != tf.resource
        for tensor, value in zip(tensors, values, strict=True)
    }


def walk(
    operations: Iterable[Any], scope: Scope, enters: Callable[[Any, str, Scope], bool]
) -> Iterator[tuple[Any, Scope]]:
    """Operations of a graph, and of the functions that they call, with their scopes.

    Args:
      operations: of the graph.
      scope: of the graph.
      enters: whether to look into a function, given the operation, its name and the scope.
    """
    for op in operations:
        yield op, scope
        for name, given in called(op):
            if enters(op, name, scope):
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
    external = captured(tensor)
    return external if isinstance(external, tf.__internal__.EagerTensor) else None


def captured(tensor: Any) -> Any | None:
    """What the graph of a function captured as this input; None if it is an argument."""
    for external, internal in getattr(tensor.graph, "captures", ()):
        if internal is tensor:
            return external
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
