"""`tf.vectorized_map` in graphs that XLA compiles.

There TensorFlow puts the vectorized loop into a function of its own. Its gradient gets
shapes from that function, XLA must know shapes when it compiles, and takes all inputs of
the function for constants then: it would compile for every batch anew. So the loop is made
in the graph itself, as outside of XLA.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.parallel_for import control_flow_ops

_LOCK = threading.RLock()


def vectorized_map(function: Callable[[Any], Any], elements: Any) -> Any:
    """As `tf.vectorized_map`; see the module."""
    with _in_place():
        return tf.vectorized_map(function, elements)


@contextlib.contextmanager
def _in_place() -> Iterator[None]:
    if tf.executing_eagerly():
        yield
        return
    with _LOCK:
        original = control_flow_ops._is_under_xla_context
        control_flow_ops._is_under_xla_context = lambda: False
        try:
            yield
        finally:
            control_flow_ops._is_under_xla_context = original
