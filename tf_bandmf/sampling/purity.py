"""Whether a traced function of examples keeps state, draws numbers, runs host code, stops.

What reads an example must be a function of that example alone: examples could meet in a
variable, and a resumed run would read others than the run did.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tf_bandmf.graphs.allocation import SIZED_BY_VALUES, sized_by_values
from tf_bandmf.graphs.operations import Effect, effect
from tf_bandmf.graphs.totality import is_endless, stopping_operations
from tf_bandmf.graphs.walking import Scope

_PURE = (Effect.NONE, Effect.READS, Effect.PRINTS)


def refused_operation(graph: Any) -> str | None:
    """The first operation that is not pure, of a graph and the functions it calls.

    It is one that is not in the table of `tf_bandmf.graphs.operations`, or does more than
    to compute its outputs and to read.

    Args:
      graph: of a traced function.
    """
    definition = graph.as_graph_def()
    nodes = list(definition.node)
    for function in definition.library.function:
        nodes += function.node_def
    called = {function.signature.name for function in definition.library.function}
    for node in nodes:
        if node.op in called:
            continue
        if effect(node, node.op) not in _PURE:
            return str(node.op)
    return None


def _stopping(
    graph: Any, examples: Sequence[Any]
) -> tuple[Scope, list[tuple[Any, str]]]:
    scope = Scope(
        {id(t): any(t is example for example in examples) for t in graph.inputs}
    )
    operations = graph.get_operations()
    return scope, list(stopping_operations(operations, scope, graph.outputs, {}))


def may_fail(graph: Any, examples: Sequence[Any]) -> bool:
    """Whether some example could stop a graph.

    Args:
      graph: of a traced function.
      examples: its inputs that hold an example.

    Raises:
      ValueError: if some example could keep it running for ever, or need any amount of
        memory.
    """
    scope, found = _stopping(graph, examples)
    operations = graph.get_operations()
    large = list(sized_by_values(operations, scope, graph.outputs, {}))
    for op, reason in [*found, *large]:
        if is_endless(reason) or reason is SIZED_BY_VALUES:
            raise ValueError(f"Operation {op.name!r} ({op.type}) {reason}.")
    return bool(found)
