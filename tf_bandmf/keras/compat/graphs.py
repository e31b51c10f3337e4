"""Private modules of TensorFlow that show what a graph does.

TensorFlow has no public way to know the custom
gradient of an operation, to ask whether code is traced for XLA, or to tell the body of a
loop from other functions while it is traced. And it has no gradient
of an operation that XLA has, which hands its inputs on.

What tells that it broke: `tests/keras/compat/test_graphs.py`.
"""

from collections.abc import Iterable
from typing import Any

from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.python.eager import context
from tensorflow.python.framework import op_def_registry, ops, tensor_util
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops import control_flow_v2_func_graphs as _control_flow
from tensorflow.python.ops import custom_gradient, nn_impl
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext
from tensorflow.python.util import compat

EagerTensor = ops.EagerTensor
# Condition and body of a loop, whose first input is the number of the round.
LOOP_GRAPHS = (_control_flow.WhileBodyFuncGraph, _control_flow.WhileCondFuncGraph)
BRANCH_GRAPHS = (_control_flow.CondBranchFuncGraph,)

__all__ = [
    "BRANCH_GRAPHS",
    "EagerTensor",
    "FuncGraph",
    "GraphOrParentsInXlaContext",
    "LOOP_GRAPHS",
    "context",
    "custom_gradient",
    "gen_xla_ops",
    "nn_impl",
    "op_def_registry",
    "ops",
    "tensor_util",
]


def _handed_on(op: ops.Operation, *gradients: Any) -> list[Any]:
    del op
    return list(gradients)


ops.RegisterGradient("XlaOptimizationBarrier")(_handed_on)


def forget_gradients(operations: Iterable[Any]) -> None:
    """Takes back gradients that replaced those of operations, and will not be asked for.

    TensorFlow keeps each with the graph that it belongs to, as long as the process runs.
    """
    for op in operations:
        name = compat.as_str(op.get_attr("_gradient_op_type"))
        ops.gradient_registry._registry.pop(name, None)
