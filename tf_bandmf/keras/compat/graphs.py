"""Private modules of TensorFlow that show what a graph does.

TensorFlow has no public way to see operations as they are made, to know the custom
gradient of an operation, or to ask whether code is traced for XLA. And it has no gradient
of an operation that XLA has, which hands its inputs on.

What tells that it broke: `tests/keras/compat/test_graphs.py`.
"""

from typing import Any

from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.python.eager import context
from tensorflow.python.framework import op_callbacks, op_def_registry, ops, tensor_util
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops import custom_gradient, nn_impl
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

EagerTensor = ops.EagerTensor

__all__ = [
    "EagerTensor",
    "FuncGraph",
    "GraphOrParentsInXlaContext",
    "context",
    "custom_gradient",
    "gen_xla_ops",
    "nn_impl",
    "op_callbacks",
    "op_def_registry",
    "ops",
    "tensor_util",
]


def _handed_on(op: ops.Operation, *gradients: Any) -> list[Any]:
    del op
    return list(gradients)


ops.RegisterGradient("XlaOptimizationBarrier")(_handed_on)
