"""State: what a step may read and write, at any depth of nested functions.

A variable that is assigned from data carries them past clipping and noise, into the next
step or the released model. Only the counters of random generators may change. Host code
(`py_function`) can do anything, so it is refused wherever it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_bandmf.graphs.operations import OPERATIONS, Effect, effect, operation
from tf_bandmf.graphs.walking import (
    Scope,
    called,
    definition,
    has_node,
    walk,
)
from tf_bandmf.keras.compat.graphs import op_def_registry

_CLEAN = (Effect.NONE, Effect.READS, Effect.DRAWS, Effect.PRINTS)
_ASSIGNMENTS = frozenset(
    {"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"}
)
# Operation -> its input that decides what a generator's counter becomes.
_ADVANCES = {
    name: 1 if name in _ASSIGNMENTS else 2
    for name, known in OPERATIONS.items()
    if known.effect is Effect.ADVANCES
}


class NotIndependent(Exception):
    """Something in a graph that an example's gradient may not do.

    Args:
      reason: what it does, as the predicate of a sentence.
      operation: that does it.
    """

    def __init__(self, reason: str, operation: Any = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.operation = operation


def is_random(kind: str) -> bool:
    """Whether operations of a type draw from generators that are not Keras'."""
    known = operation(kind)
    return known is not None and known.effect is Effect.DRAWS


def refuse_host_operation(op: Any) -> None:
    """Refuses an operation with effects or inputs that a graph does not show.

    Raises:
      NotIndependent: if it is not in the table of what is allowed.
    """
    if definition(op.graph, op.type) is not None and _is_clean(op.graph, op.type):
        # A call of a function by its name, as of loops in TensorFlow's CTC loss.
        return
    if effect(op.node_def, op.type) not in (*_CLEAN, Effect.ADVANCES):
        raise NotIndependent(
            f"is of type {op.type}, which is not among the operations that are known to "
            "compute their outputs from their inputs and to do nothing else: it may keep "
            "state or run code outside of the graph",
            op,
        )


def may_write(op: Any) -> bool:
    """Whether an operation that takes the handle of a variable may write it."""
    functions = called(op)
    if functions:
        return not all(_is_clean(op.graph, name) for name, _ in functions)
    return effect(op.node_def, op.type) not in _CLEAN


def assigns(op: Any) -> bool:
    """Whether an operation, or a function that it calls, assigns a variable."""
    return _writes(op.node_def) or any(
        has_node(op.graph, name, _writes) for name, _ in called(op)
    )


def calls_host(graph: Any, name: str) -> bool:
    """Whether an operation, or a function by its name, may run code of the host.

    That is so of all that is not known to do something else.

    Args:
      graph: that knows the function.
      name: type of an operation, or name of a function.
    """
    if op_def_registry.get(name) is not None:
        known = operation(name)
        return known is None or known.effect is Effect.PRINTS
    if definition(graph, name) is None:
        return True
    return has_node(graph, name, lambda node: effect(node, node.op) is None)


def refuse_state(
    operations: Sequence[Any],
    examples: Sequence[Any],
    is_seed: Callable[[Any], bool],
    is_metric: Callable[[Any], bool],
) -> None:
    """Refuses operations that write variables, or act outside of the graph.

    The counter of a random generator may be advanced, but not by what is in the data: the
    next step would read it there.

    Args:
      operations: of one graph; functions that they call are searched as well.
      examples: the tensors that hold the data.
      is_seed: whether a handle is that of a random generator's counter.
      is_metric: whether a handle is that of a metric, which knows the data.

    Raises:
      NotIndependent: with the operation.
    """
    scope = Scope({id(tensor): True for tensor in examples})
    for op in operations:
        if any(t.dtype == tf.resource and is_metric(t) for t in op.inputs):
            raise NotIndependent("reads the state of a metric", op)
    for op, here in walk(
        operations, scope, lambda op, name, _: not _is_clean(op.graph, name)
    ):
        index = _ADVANCES.get(op.type)
        if index is None:
            refuse_host_operation(op)
            continue
        if op.type in _ASSIGNMENTS and not is_seed(here.origin(op.inputs[0])[0]):
            raise NotIndependent("changes a variable", op)
        if here.decided or here.depends(op.inputs[index]):
            raise NotIndependent(
                "keeps data in the counter of a random generator, for the next step", op
            )


def _writes(node: Any) -> bool:
    known = operation(node.op)
    return known is not None and (
        known.effect is Effect.WRITES or node.op in _ASSIGNMENTS
    )


def _is_clean(graph: Any, name: str) -> bool:
    """Whether a function, and all that it calls, neither write nor act outside."""
    return not has_node(graph, name, lambda node: effect(node, node.op) not in _CLEAN)
