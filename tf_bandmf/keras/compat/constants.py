"""Numbers that a graph has once, however often they are written.

A third of a step's operations are constants, and most of these are the 0 and 1 of slices
and axes, written again and again. TensorFlow finds them out only when it optimizes the
graph; but it takes its time for each operation before, too.

What tells that it broke: `tests/keras/compat/test_constants.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops

from tf_bandmf.keras.compat.patching import patched

# Attribute of a graph: its constants, by how they are written.
_MADE = "_tf_bandmf_constants"
# Values of a type are written the same only if they are the same, to the bit.
_PLAIN = {bool, int, float}


@contextlib.contextmanager
def shared_constants() -> Iterator[None]:
    """Numbers that the body adds to the current graph are constants of it once each.

    That is for code of ours: a layer may set attributes of what it takes for its own. In
    eager code, functions that the body traces, and on devices that it names, all is as it
    was.
    """
    if tf.executing_eagerly():
        yield
        return
    graph = tf.compat.v1.get_default_graph()
    made = getattr(graph, _MADE, None)
    if made is None:
        made = {}
        setattr(graph, _MADE, made)

    def shared(original: Any, value: Any, *args: Any, **kwargs: Any) -> tf.Tensor:
        parts = value if type(value) in (list, tuple) else (value,)
        if (
            kwargs
            or ops.get_default_graph() is not graph
            or not _PLAIN.issuperset(map(type, parts))
            or any(graph._device_function_stack.peek_objs())
        ):
            return original(value, *args, **kwargs)
        dtype, shape, _, *checks = args
        key = repr((value, dtype, shape, checks))
        if key not in made:
            # A number waits for nothing.
            with tf.control_dependencies(None):
                made[key] = original(value, *args)
        return made[key]

    with patched(ops, "_create_graph_constant", shared):
        yield
