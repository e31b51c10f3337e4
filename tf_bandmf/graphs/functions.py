"""Graphs of the functions that operations call, made anew of their definitions.

The definition is what runs. TensorFlow keeps the graph beside it from which the definition
was made; whoever has the operation can put another graph in its place, so nothing is read
from there, and no shape that a definition claims of its arguments. Shapes follow from what
the operation gets; in a loop, from what holds in each round.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import func_graph
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph_def
from tensorflow.python.ops import handle_data_util

from tf_bandmf.graphs.operations import LOOPS
from tf_bandmf.graphs.shapes import CLAIMS, followed, in_force, shape_of

_STATE = threading.local()


@contextlib.contextmanager
def made_once() -> Iterator[None]:
    """Has each graph made once as long as the context is open, in this thread."""
    if getattr(_STATE, "made", None) is not None:
        yield
        return
    _STATE.made = {}
    try:
        yield
    finally:
        _STATE.made = None


def function_graph(op: Any, name: str, given: Sequence[Any]) -> Any:
    """The graph of a function that an operation calls.

    It knows the operation, as `_calling_operation`.

    Args:
      op: the operation.
      name: of the function.
      given: what the function gets.

    Raises:
      KeyError: if no graph around the operation knows the function.
    """
    made: dict[Any, tuple[Any, Any]] | None = getattr(_STATE, "made", None)
    if made is None:
        return _graph_of(op, name, given)
    shapes = in_force()
    key = (id(op), name, id(shapes))
    if key not in made:
        graph = _graph_of(op, name, given)
        # Both are kept, so that no other ones get their ids.
        made[key] = (op, shapes), graph
    return made[key][1]


def _graph_of(op: Any, name: str, given: Sequence[Any]) -> Any:
    known: tuple[tf.DType, ...] = (tf.resource, tf.variant)
    if op.type in LOOPS:
        known = (tf.resource,)
        inside = op.get_attr("body").name
        if name == inside:
            return _settled_body(op, *_shapes_and_handles(given, known))
        # What holds of the state in each round is what the body says.
        given = function_graph(op, inside, given).inputs
    return _made(op, name, *_shapes_and_handles(given, known))


def _shapes_and_handles(
    given: Sequence[Any], known: Sequence[tf.DType]
) -> tuple[list[Any], list[Any]]:
    handles = [followed(tensor) if tensor.dtype in known else None for tensor in given]
    return [shape_of(tensor) for tensor in given], handles


def _settled_body(op: Any, shapes: list[Any], handles: list[Any]) -> Any:
    """The body of a loop, with the shapes that its state has in each round.

    What a round changes is taken out of both lists.
    """
    while True:
        body = _made(op, op.get_attr("body").name, shapes, handles)
        changed = False
        for place, (before, after) in enumerate(
            zip(body.inputs, body.outputs, strict=True)
        ):
            while after.op.type == "Identity":
                after = after.op.inputs[0]
            if after is before:
                continue
            shape = shapes[place].most_specific_compatible_shape(after.shape)
            changed |= str(shape) != str(shapes[place]) or handles[place] is not None
            shapes[place], handles[place] = shape, None
        if not changed:
            return body


def _made(op: Any, name: str, shapes: Sequence[Any], handles: Sequence[Any]) -> Any:
    """A graph that is made of a function's definition.

    Args:
      op: the operation that calls it.
      name: of the function.
      shapes: of its arguments.
      handles: of variables and lists, with whose shapes it is made; else None.
    """
    found = definition(op.graph, name)
    if found is None:
        raise KeyError(f"{name} must be known in the graph of {op.name}")
    with op.graph.as_default():
        nodes, names = function_def_to_graph_def(found)
        graph = func_graph.FuncGraph(name)
    arguments = [argument.name for argument in found.signature.input_arg]
    del nodes.node[: len(arguments)]
    used = {source for node in nodes.node for source in node.input}
    for node in nodes.node:
        for claim in CLAIMS:
            node.attr.pop(claim, None)
    with graph.as_default():
        for argument, shape, handle in zip(
            found.signature.input_arg, shapes, handles, strict=True
        ):
            tensor = tf.compat.v1.placeholder(
                tf.as_dtype(argument.type), shape, argument.name
            )
            if handle is not None:
                handle_data_util.copy_handle_data(handle, tensor)
            graph.inputs.append(tensor)
        tensors = {names[n]: t for n, t in zip(arguments, graph.inputs, strict=True)}
        controls = {f"^{t.op.name}": t for t in graph.inputs}
        mapped = {n: t for n, t in (tensors | controls).items() if n in used}
        tf.graph_util.import_graph_def(nodes, mapped, name="")
        for result in found.signature.output_arg:
            source = names[found.ret[result.name]]
            is_argument = source in tensors
            graph.outputs.append(
                tensors[source] if is_argument else graph.get_tensor_by_name(source)
            )
    graph._calling_operation = op
    return graph


def all_nodes(graph: Any) -> list[Any]:
    """Nodes of the definition of a graph, and of all functions that it calls.

    A graph that was cut out of another one keeps the other's library.
    """
    found = graph.as_graph_def()
    library = {part.signature.name: part.node_def for part in found.library.function}
    nodes: list[Any] = []
    to_visit: list[Any] = [found.node]
    while to_visit:
        for node in to_visit.pop():
            nodes.append(node)
            parts = [part for a in node.attr.values() for part in (a, *a.list.func)]
            names = [getattr(part, "func", part).name for part in parts]
            to_visit += [library.pop(n) for n in (node.op, *names) if n in library]
    return nodes


def definition(graph: Any, name: str) -> Any:
    """The definition of a function that a graph, or one around it, knows; or None.

    Args:
      graph: None in eager code, which knows all.
      name: of the function.
    """
    from tensorflow.python.eager import context

    if graph is None and context.context().has_function(name):
        return context.context().get_function_def(name)
    while graph is not None:
        function = graph._get_function(name)
        if function is not None:
            return function.cached_definition
        graph = getattr(graph, "outer_graph", None)
    return None
