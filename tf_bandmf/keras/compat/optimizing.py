"""Limits how TensorFlow optimizes the graph of a training step before its first run.

By default, TensorFlow goes through all its optimizations twice. The second pass finds next
to nothing in a step's graph. Some optimizations find nothing at all: those of functions
(which are inlined before), those of branches, and, on CPUs, those of layouts and memory.
TensorFlow also converts the graph to MLIR and back, to sort it. Without these, the first
run of a graph takes a third less time. There is no public way to configure this for one
function.

Tests that fail if it breaks: `tests/keras/compat/test_optimizing.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig
from tensorflow.python.eager import context


@contextlib.contextmanager
def optimized_once() -> Iterator[None]:
    """A context in which functions that this thread calls are optimized in one pass.

    Other settings of TensorFlow do not change.
    """
    here = context.context()
    before = here.function_call_options
    config = config_pb2.ConfigProto.FromString(before.config_proto_serialized)
    rewrites = config.graph_options.rewrite_options
    rewrites.meta_optimizer_iterations = RewriterConfig.ONE
    rewrites.disable_tfg_optimizer = True
    rewrites.function_optimization = RewriterConfig.OFF
    rewrites.experimental_conditional_code_motion = RewriterConfig.OFF
    if not tf.config.list_logical_devices("GPU"):
        rewrites.layout_optimizer = RewriterConfig.OFF
        rewrites.memory_optimization = RewriterConfig.NO_MEM_OPT
    here.function_call_options = context.FunctionCallOptions(
        before.executor_type, config
    )
    try:
        yield
    finally:
        here.function_call_options = before
