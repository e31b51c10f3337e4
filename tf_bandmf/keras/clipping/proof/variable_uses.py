"""Which operations take the handles of variables, in graphs and in eager code."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from tf_bandmf.graphs.walking import called
from tf_bandmf.keras.clipping.forward.weight_reads import captured_handles, traced_graph
from tf_bandmf.keras.clipping.independence import state
from tf_bandmf.keras.compat.graphs import op_callbacks


class VariableUse(NamedTuple):
    """An operation that takes the handle of a variable.

    Attributes:
      operation: its name, or its type in eager code.
      handle: of the variable.
      may_write: whether it may write the variable.
      assigns: whether it, or a function that it calls, assigns a variable.
    """

    operation: str
    handle: Any
    may_write: bool
    assigns: bool


Check = Callable[[VariableUse], None]


@contextlib.contextmanager
def each_variable_use(check: Check) -> Iterator[None]:
    """Checks the uses of variables by the operations of its body.

    Args:
      check: raises an error for a use that is refused. In eager code it is asked when the
        operation has run, in a graph at the end of the body; so it is for variables that
        the body makes, for only then it is known whose they are.
    """
    if tf.executing_eagerly():
        eager = _Eager(check, [], [])
        token = _eager.set(eager)
        op_callbacks.add_op_callback(_check_operation)
        try:
            yield
        finally:
            op_callbacks.remove_op_callback(_check_operation)
            _eager.reset(token)
        for use in eager.later:
            check(use)
        return
    graph = tf.compat.v1.get_default_graph()
    start = len(graph.get_operations())
    yield
    captured = captured_handles(graph)
    for op in graph.get_operations()[start:]:
        for tensor in op.inputs:
            if tensor.dtype == tf.resource:
                handle = captured.get(id(tensor), tensor)
                effects = state.may_write(op), state.assigns(op)
                check(VariableUse(op.name, handle, *effects))


@contextlib.contextmanager
def no_host_code(refuse: Callable[[str], None]) -> Iterator[None]:
    """Finds code of the host that the operations of its body, in a graph, call.

    Args:
      refuse: raises an error, given the operation's name.

    Raises:
      RuntimeError: in eager code.
    """
    graph = traced_graph()
    start = len(graph.get_operations())
    yield
    for op in graph.get_operations()[start:]:
        if state.calls_host(op.graph, op.type) or any(
            state.calls_host(op.graph, name) for name, _ in called(op)
        ):
            refuse(op.name)


class _Eager(NamedTuple):
    """Eager code that is looked at.

    Attributes:
      check: see `each_variable_use`.
      made: handles of variables that the code makes.
      later: their uses.
    """

    check: Check
    made: list[Any]
    later: list[VariableUse]


_eager: contextvars.ContextVar[_Eager] = contextvars.ContextVar("eager")


def _check_operation(
    op_type: str,
    inputs: tuple[Any, ...],
    attrs: Any,
    outputs: Any,
    op_name: Any = None,
    graph: Any = None,
) -> None:
    """Looks at an operation, or at the call of a function with all that it captures."""
    if graph is not None:
        return  # a function is traced: its call follows
    eager = _eager.get()
    if op_type == "VarHandleOp":
        eager.made.extend(outputs)
    for tensor in inputs:
        if tensor.dtype == tf.resource:
            use = VariableUse(op_type, tensor, *state.eager_effects(op_type))
            if any(tensor is handle for handle in eager.made):
                eager.later.append(use)
            else:
                eager.check(use)
