"""Private TensorFlow modules that give access to the content of a graph.

TensorFlow has no public way to find the custom gradient of an operation, or to tell the
body of a loop from other functions while it is traced. It also has no gradient for
`XlaOptimizationBarrier`, an operation that returns its inputs; this module registers one.

Tests that fail if this breaks: `tests/keras/compat/test_graphs.py`,
`tests/keras/run/test_updates.py`, `tests/keras/clipping/independence/test_state.py`.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from tensorflow.compiler.tf2xla.ops import gen_xla_ops as gen_xla_ops
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.eager import context as context
from tensorflow.python.framework import dtypes
from tensorflow.python.framework import op_def_registry as op_def_registry
from tensorflow.python.framework import ops as ops
from tensorflow.python.framework.func_graph import FuncGraph as FuncGraph
from tensorflow.python.ops import control_flow_v2_func_graphs as _control_flow
from tensorflow.python.util import compat

# The graph classes of loop bodies and loop conditions. The first input of such a graph is
# the iteration number.
LOOP_GRAPHS = (_control_flow.WhileBodyFuncGraph, _control_flow.WhileCondFuncGraph)
BRANCH_GRAPHS = (_control_flow.CondBranchFuncGraph,)

# Dtypes of tensors that stand for variables and tables.
_HANDLES = (dtypes.resource, dtypes.variant)


def _handed_on(op: ops.Operation, *gradients: Any) -> list[Any]:
    del op
    return list(gradients)


ops.RegisterGradient("XlaOptimizationBarrier")(_handed_on)


def kind_of(leaf: Any) -> Any:
    """Returns dtype and shape of a tensor or variable, to compare those of two calls."""
    if isinstance(leaf, ops.EagerTensor):
        # `dtype` and `shape` would make Python objects, which takes ten times as long.
        return leaf._datatype_enum(), leaf._shape_tuple()
    return None if leaf is None else (type(leaf), leaf.dtype, leaf.shape)


def call_flat(concrete: Any, leaves: Iterable[Any]) -> Any:
    """Calls a concrete function with the flattened tensors of its nested arguments.

    A call through the public interface compares each argument with the signature again,
    and looks for gradient tapes, which takes longer than running a small program. Leaves
    that are None are skipped. Variables are passed by reference. No gradient tape records
    the call.
    """
    tensors = [
        leaf
        if isinstance(leaf, ops.EagerTensor)
        else ops.convert_to_tensor(getattr(leaf, "handle", leaf))
        for leaf in leaves
        if leaf is not None
    ]
    inputs, function = (
        [*tensors, *concrete.captured_inputs],
        concrete._inference_function,
    )
    here, kind = context.context(), function.function_type
    outputs = here.call_function(function.name, inputs, len(kind.flat_outputs))
    return kind.pack_output(outputs)


def forget_gradients(operations: Iterable[Any]) -> None:
    """Unregisters the custom gradients of operations that are no longer needed.

    TensorFlow would keep each custom gradient and its graph until the process ends.
    """
    for op in operations:
        name = compat.as_str(op.get_attr("_gradient_op_type"))
        ops.gradient_registry._registry.pop(name, None)


def nodes_of(op: Any) -> Iterator[Any]:
    """Yields the node of an operation, and the nodes of all functions that it calls.

    If neither the operation's graph nor an outer graph defines a function, the nodes of
    the function are unknown. Then one node with the function's name is yielded instead.
    """
    seen: set[str] = set()
    pending = [op.node_def]
    while pending:
        node = pending.pop()
        named = [f.name for a in node.attr.values() for f in (a.func, *a.list.func)]
        body = _definition(op.graph, node.op)
        if body is None:
            yield node
        for name in [*filter(None, named), *([] if body is None else [node.op])]:
            if name not in seen:
                seen.add(name)
                inside = _definition(op.graph, name)
                pending += [NodeDef(op=name)] if inside is None else inside.node_def


def _definition(graph: Any, name: str) -> Any:
    """Finds a function's definition in a graph or its outer graphs; None if absent."""
    while graph is not None:
        function = graph._get_function(name)
        if function is not None:
            return function.cached_definition
        graph = getattr(graph, "outer_graph", None)
    return None


def origin(handle: Any) -> Any:
    """Returns the original of a handle that one or more nested functions captured.

    A handle that was not captured is returned itself.
    """
    while (outside := captured(handle)) is not None:
        handle = outside
    return handle


def captured(tensor: Any) -> Any | None:
    """Returns the outer graph's tensor that was captured as `tensor`.

    Returns None if `tensor` was not captured: if it is an argument or the result of an
    operation of its graph, or is in no graph.
    """
    graph = getattr(tensor, "graph", None)
    for external, internal in getattr(graph, "captures", ()):
        if internal is tensor:
            return external
    return None


def depends_on_arguments(tensor: Any) -> bool:
    """Returns whether a tensor may depend on more than variables and constants."""
    seen: set[int] = set()
    pending = [tensor]
    while pending:
        tensor = pending.pop()
        if isinstance(tensor, ops.EagerTensor) or tensor.dtype in _HANDLES:
            continue
        op = tensor.op
        outside = None if op.inputs else captured(tensor)
        if outside is not None:
            pending.append(outside)
        elif not op.inputs and op.type != "Const":
            return True
        elif id(op) not in seen:
            seen.add(id(op))
            pending += op.inputs
    return False
