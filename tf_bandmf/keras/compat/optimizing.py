"""Limits how TensorFlow optimizes the graph of a training step before its first run.

By default, TensorFlow runs all its graph optimizations twice. In the graph of a step,
the second round finds next to nothing. Some optimizations find nothing at all: those
for functions (which are already inlined), for branches and, on CPUs, for layouts and
memory. TensorFlow also converts the graph to MLIR and back, only to sort it. Without
these optimizations, the first run of a graph takes a third less time. TensorFlow has no
public API that configures the optimizations of a single function.

Tests that fail if this breaks: `tests/keras/compat/test_optimizing.py`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig
from tensorflow.python.eager import context


@contextlib.contextmanager
def optimized(rounds: int = 1) -> Iterator[None]:
    """Returns a context in which TensorFlow optimizes each graph once, or not at all.

    The context applies to this thread. Optimizations that find nothing in a step are
    turned off. TensorFlow's other settings remain as they are.

    Args:
      rounds: 1; or 0 for a graph in which no optimization finds anything.
    """
    here = context.context()
    before = here.function_call_options
    here.function_call_options = _options(*before.as_attrs().values(), rounds)
    try:
        yield
    finally:
        here.function_call_options = before


@functools.lru_cache(maxsize=4)
def _options(executor_type: str, serialized: bytes, rounds: int) -> Any:
    config = config_pb2.ConfigProto.FromString(serialized)
    rewrites = config.graph_options.rewrite_options
    rewrites.disable_meta_optimizer = not rounds
    rewrites.meta_optimizer_iterations = RewriterConfig.ONE
    rewrites.disable_tfg_optimizer = True
    rewrites.function_optimization = RewriterConfig.OFF
    rewrites.experimental_conditional_code_motion = RewriterConfig.OFF
    if not tf.config.list_logical_devices("GPU"):
        rewrites.layout_optimizer = RewriterConfig.OFF
        rewrites.memory_optimization = RewriterConfig.NO_MEM_OPT
    return context.FunctionCallOptions(executor_type, config)
