"""Static shapes that follow from the operations of a graph.

`set_shape` says of a tensor what nothing checks, and TensorFlow hands it on to all that is
made of it. Who said it does not matter here: the graph is made anew of its definition, in
which there are no such claims, and the shapes are inferred again.

What operations say in attributes stays: `While`, `If`, `PlaceholderWithDefault` and others.
Who believes the shapes has to look at those.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import func_graph
from tensorflow.python.ops import handle_data_util

# Claims about shapes in a definition, and places, which say nothing about shapes.
CLAIMS = ("_output_shapes", "_class")
_HANDLES = (tf.resource.as_datatype_enum, tf.variant.as_datatype_enum)
_STATE = threading.local()


class InferredShapes:
    """A graph made anew of its definition.

    Args:
      graph: a graph.
      results: if not None, tensors of the graph: no more is made than what they are
        computed from.
      before: the same graph made before, with sizes that were found since: what is made
        of those tensors has shapes that follow from them.
    """

    def __init__(
        self,
        graph: Any,
        results: Sequence[Any] | None = None,
        before: InferredShapes | None = None,
    ) -> None:
        self.graph = graph
        self._sizes: dict[str, tuple[Any, tf.TensorShape]] = {}
        if before is not None:
            self._sizes.update(before._sizes)
        definition = graph.as_graph_def()
        needed = None if results is None else _behind(results)
        kept, handles = [], []
        for node in definition.node:
            if needed is not None and node.name not in needed:
                continue
            if node.op == "Placeholder" and node.attr["dtype"].type in _HANDLES:
                handles.append((node.name, node.attr["shape"].shape))
                continue
            for claim in CLAIMS:
                node.attr.pop(claim, None)
            kept.append(node)
        names = [node.name for node in kept]
        kept = [*kept, *self._with_sizes(kept)]
        made_of = tf.compat.v1.GraphDef(
            versions=definition.versions, library=definition.library
        )
        made_of.node.extend(kept)
        used = {source for node in kept for source in node.input}
        self._copy = func_graph.FuncGraph("inferred")
        with self._copy.as_default():
            given = {}
            self._made: dict[str, Any] = {}
            for name, shape in handles:
                handle = graph.get_tensor_by_name(f"{name}:0")
                placeholder = tf.compat.v1.placeholder(
                    handle.dtype, tf.TensorShape(shape), name
                )
                handle_data_util.copy_handle_data(handle, placeholder)
                self._made[name] = placeholder.op
                if name in used:
                    given[name] = placeholder
                if f"^{name}" in used:
                    given[f"^{name}"] = placeholder.op
            # By position: a name may be taken by the scope of a placeholder.
            found = tf.graph_util.import_graph_def(made_of, given, names, name="")
            self._made.update(zip(names, found, strict=True))

    def _with_sizes(self, nodes: Sequence[Any]) -> list[Any]:
        """Has nodes take tensors with the sizes that were found of them.

        Returns:
          Further nodes, which say these sizes.
        """
        made, instead = [], {}
        here = {node.name for node in nodes}
        for name, (tensor, shape) in self._sizes.items():
            if tensor.op.name not in here:
                continue
            short = name.removesuffix(":0")
            node = tf.compat.v1.NodeDef(
                name=f"found/{name.replace(':', '_')}", op="EnsureShape", input=[short]
            )
            node.attr["T"].type = tensor.dtype.as_datatype_enum
            node.attr["shape"].shape.CopyFrom(shape.as_proto())
            made.append(node)
            instead[short] = node.name
        for node in nodes:
            given = [instead.get(source, source) for source in node.input]
            del node.input[:]
            node.input.extend(given)
        return made

    def note(self, tensor: Any, shape: tf.TensorShape) -> None:
        """Notes what was found of a tensor of the graph."""
        self._sizes[tensor.name] = tensor, shape

    def followed(self, tensor: Any) -> Any | None:
        """The tensor in the new graph, or None if that does not have it."""
        op = self._made.get(tensor.op.name)
        return None if op is None else op.outputs[tensor.value_index]


def _behind(results: Sequence[Any]) -> set[str]:
    """Names of the operations that tensors are computed from."""
    pending = [tensor.op for tensor in results]
    found: set[str] = set()
    while pending:
        op = pending.pop()
        if op.name not in found:
            found.add(op.name)
            pending.extend(tensor.op for tensor in op.inputs)
            pending.extend(op.control_inputs)
    return found


@contextlib.contextmanager
def believed(shapes: InferredShapes) -> Iterator[None]:
    """Has the shapes of a graph be those that were inferred again, in this thread."""
    previous = getattr(_STATE, "shapes", None)
    _STATE.shapes = shapes
    try:
        yield
    finally:
        _STATE.shapes = previous


def in_force() -> InferredShapes | None:
    """The shapes that are believed in this thread, if there are any."""
    return getattr(_STATE, "shapes", None)


def followed(tensor: Any) -> Any | None:
    """A tensor as it was made anew; itself where no shapes were inferred again.

    Returns:
      None for a tensor of that graph which was not made again.
    """
    shapes = in_force()
    if shapes is None or tensor.graph is not shapes.graph:
        return tensor
    return shapes.followed(tensor)


def shape_of(tensor: Any) -> tf.TensorShape:
    """The static shape of a tensor, of which nothing is known that does not follow."""
    found = followed(tensor)
    return tf.TensorShape(None) if found is None else found.shape
