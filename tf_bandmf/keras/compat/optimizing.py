"""How TensorFlow optimizes the graph of a training step before it runs it first.

By default it goes through all its optimizations twice. The second time finds next to
nothing in a step's graph and is a tenth of the time before the first step. There is no
public way to have them once, nor to have that for one function.

What tells that it broke: `tests/keras/compat/test_optimizing.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.python.eager import context


@contextlib.contextmanager
def optimized_once() -> Iterator[None]:
    """Functions that this thread calls in its body are optimized in one round.

    Whatever else is configured stays as it is.
    """
    here = context.context()
    before = here.function_call_options
    config = config_pb2.ConfigProto.FromString(before.config_proto_serialized)
    rounds = rewriter_config_pb2.RewriterConfig.ONE
    config.graph_options.rewrite_options.meta_optimizer_iterations = rounds
    here.function_call_options = context.FunctionCallOptions(
        before.executor_type, config
    )
    try:
        yield
    finally:
        here.function_call_options = before
