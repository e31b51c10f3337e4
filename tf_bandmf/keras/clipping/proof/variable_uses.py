"""Which operations of a graph take the handles of variables."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from tf_bandmf.keras.clipping.forward.weight_reads import captured_handles, traced_graph
from tf_bandmf.keras.clipping.independence import state
from tf_bandmf.keras.clipping.independence.state import Effect


class VariableUse(NamedTuple):
    """An operation that takes the handle of a variable.

    Attributes:
      operation: its name.
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
      check: raises an error for a use that is refused. It is asked at the end of the
        body: only then it is known whose the variables are that the body makes.

    Raises:
      RuntimeError: in eager code.
    """
    graph = traced_graph()
    start = len(graph.get_operations())
    yield
    captured = captured_handles(graph)
    for op in graph.get_operations()[start:]:
        for tensor in op.inputs:
            if tensor.dtype == tf.resource:
                handle = captured.get(id(tensor), tensor)
                effects = state.effects(op)
                assigns = bool(effects & {Effect.ASSIGNS, Effect.WRITES})
                check(VariableUse(op.name, handle, state.may_write(op), assigns))


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
        if Effect.UNKNOWN in state.effects(op):
            refuse(op.name)
