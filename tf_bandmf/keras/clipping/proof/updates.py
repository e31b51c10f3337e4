"""What an update of the weights is computed from: noisy gradients, variables, constants.

Learning rates, constraints, regularizers and inner optimizers are code of the user, and may
use what layers and metrics of the same graph have kept. So the update is followed back from
what it writes: to what was released, or to what depends on no data.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_bandmf.keras.clipping.forward.weight_reads import captured_handles, traced_graph
from tf_bandmf.keras.clipping.independence import state
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.clipping.tensors.variables import VariableIndex
from tf_bandmf.keras.compat.graphs import EagerTensor, captured

# Of a graph: what a step may let anybody see.
_RELEASED = "tf_bandmf_released"
# What has no tensors among its inputs, and no data among its outputs.
_SOURCES = ("Const", "NoOp", "ReadVariableOp", "VariableShape", "VarIsInitializedOp")


def released(tensors: Any) -> None:
    """Notes tensors that have their noise: an update may depend on them."""
    graph = tf.compat.v1.get_default_graph()
    for tensor in tf.nest.flatten(tensors):
        graph.add_to_collection(_RELEASED, tensor)


def data_behind(tensors: Iterable[Any]) -> Any | None:
    """The first operation behind tensors that may hold data without noise, or None.

    Args:
      tensors: of graphs.
    """
    seen: set[int] = set()
    pending = [tensor for tensor in tensors if _is_symbolic(tensor)]
    known: dict[int, set[int]] = {}
    while pending:
        tensor = pending.pop()
        op = tensor.op
        if id(op.graph) not in known:
            noted = op.graph.get_collection_ref(_RELEASED)
            known[id(op.graph)] = {id(each) for each in noted}
        if id(tensor) in known[id(op.graph)] or id(op) in seen:
            continue
        seen.add(id(op))
        inputs = [t for t in op.inputs if t.dtype != tf.resource]
        if op.type == "Placeholder":
            outside = captured(tensor)
            if outside is None:
                return op
            inputs = [outside] if _is_symbolic(outside) else []
        elif not inputs and op.type not in _SOURCES:
            return op
        pending += inputs
    return None


def refuse_data(tensors: Iterable[Any], where: str) -> None:
    """Raises UnsupportedModelError if an update would be computed from data.

    Args:
      tensors: that it is computed from; handles of variables are passed over.
      where: the operation, or what is computed.
    """
    found = data_behind([t for t in tensors if t.dtype != tf.resource])
    if found is not None:
        raise UnsupportedModelError(
            f"The update of the weights computes with {found.name!r} ({found.type}), in "
            f"{where!r}, which is neither a noisy gradient nor a variable nor a constant. "
            f"What depends on data would reach the weights without clipping or noise: "
            f"learning rates, constraints and inner optimizers must not use what layers, "
            f"losses or metrics keep."
        )


def _is_symbolic(tensor: Any) -> bool:
    return tf.is_tensor(tensor) and not isinstance(tensor, EagerTensor)


@contextlib.contextmanager
def update_is_released(
    noisy: Any, variables: Sequence[Any], alone: bool = True
) -> Iterator[None]:
    """Refuses an update, made in the body in a graph, that computes with data.

    Args:
      noisy: tensors that have their noise.
      variables: Keras variables that the body may change.
      alone: whether the body makes all operations that come up meanwhile. If not, as on
        replicas that take turns, only those that write the variables are looked at.

    Raises:
      UnsupportedModelError: if it computes with something else.
      RuntimeError: in eager code.
    """
    graph = traced_graph()
    released(noisy)
    start = len(graph.get_operations())
    yield
    index, handles_of = VariableIndex(variables), captured_handles(graph)
    for op in graph.get_operations()[start:]:
        handles = [t for t in op.inputs if t.dtype == tf.resource]
        writes = state.may_write(op) and any(
            index.owner(handles_of.get(id(t), t)) is not None for t in handles
        )
        # What is alone in the body could also stop the step, or write something else.
        if not (writes or (alone and op.op_def.is_stateful)):
            continue
        refuse_data(op.inputs, op.name)
