"""Whether a traced function of examples keeps state, draws numbers or runs host code.

What reads an example must be a function of that example alone: examples could meet in a
variable, and a resumed run would read others than the run did.
"""

from __future__ import annotations

from typing import Any

# Stateful operations that change nothing and draw nothing: reads of weights and tables.
_READS = {
    "Assert",
    "Placeholder",
    "ReadVariableOp",
    "VarHandleOp",
    "VarIsInitializedOp",
    "ResourceGather",
    "ResourceGatherNd",
    "HashTableV2",
    "StaticHashTable",
    "LookupTableFindV2",
    "LookupTableSizeV2",
}
# Their bodies are looked at instead.
_CALLS = {
    "PartitionedCall",
    "StatefulPartitionedCall",
    "If",
    "StatelessIf",
    "Case",
    "StatelessCase",
    "While",
    "StatelessWhile",
    "Switch",
    "Merge",
}


def stateful_operation(graph: Any, may_call_host: bool = False) -> str | None:
    """The first operation that has state, of a graph and the functions it calls.

    Args:
      graph: of a traced function.
      may_call_host: whether code of the host is no state.
    """
    definition = graph.as_graph_def()
    nodes = list(definition.node)
    for function in definition.library.function:
        nodes += function.node_def
    known = {op.name: op for op in _op_defs(definition)}
    for node in nodes:
        op = known.get(node.op)
        if op is None or node.op in _READS or node.op in _CALLS:
            continue
        if "PyFunc" in node.op:
            if not may_call_host:
                return node.op
        elif op.is_stateful:
            return node.op
    return None


def _op_defs(definition: Any) -> Any:
    from tensorflow.python.framework import op_def_registry

    names = {node.op for node in definition.node}
    for function in definition.library.function:
        names |= {node.op for node in function.node_def}
    found = (op_def_registry.get(name) for name in names)
    return [op for op in found if op is not None]
