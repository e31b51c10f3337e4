"""`tf.function`s that all models share, but that keep no model in memory."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

# `near_length` rounds up to a multiple of one of these powers of two, from 8 to 2^27.
_UNITS = 1 << np.arange(3, 28, dtype=np.int32)

# The graph collections that the graph of a function shares with the outer graph instead
# of copying them.
_SHARED = ("variables", "local_variables", "trainable_variables")


def shared_function(
    function: Callable[..., Any] | None = None, **options: Any
) -> Callable[..., Any]:
    """Returns a `tf.function` that may outlive the models that call it.

    A graph that is traced within another graph gets a copy of the outer graph's
    collections, which keep the whole outer graph in memory. A shared function would
    thus keep the graph of a model's training step until the process ends. Therefore the
    collections are removed from the outer graph while the function is called.

    Args:
      function: function of tensors, variables and Python numbers. It must not
        close over tensors. Omit `function` to use `shared_function` as a decorator with
        options. If XLA compiles the function, the values of integer variables are
        passed instead of the variables, which may be on the CPU, where a program for
        the GPU cannot read them.
      **options: options of `tf.function`.

    Returns:
      The shared `tf.function`, or a decorator if `function` is omitted.
    """
    if function is None:
        return functools.partial(shared_function, **options)
    traced = tf.function(function, autograph=False, **options)
    compiled = options.get("jit_compile", False)

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        if compiled:
            arguments = tf.nest.map_structure(_value, arguments)
        if tf.executing_eagerly():
            return traced(*arguments)
        with _without_collections(tf.compat.v1.get_default_graph()):
            return traced(*arguments)

    return call


def _value(argument: Any) -> Any:
    if isinstance(argument, tf.Variable) and argument.dtype.is_integer:
        return tf.convert_to_tensor(argument)
    return argument


def near_length(count: tf.Tensor) -> tf.Tensor:
    """Rounds a count up to the next of a few lengths.

    The result exceeds the count by at most max(8, count / 8). XLA compiles a separate
    program for each length, so vectors of varying length are padded to one of these few
    lengths.

    Args:
      count: int32 scalar.
    """
    unit = tf.reduce_max(tf.where(_UNITS * 8 <= count, _UNITS, _UNITS[0]))
    return (tf.maximum(count, 1) + unit - 1) // unit * unit


@contextlib.contextmanager
def _without_collections(graph: tf.Graph) -> Iterator[None]:
    names = set(graph.get_all_collection_keys()).difference(_SHARED)
    aside = {name: graph.get_collection(name) for name in names}
    for name in names:
        graph.clear_collection(name)
    try:
        yield
    finally:
        for name, values in aside.items():
            graph.get_collection_ref(name)[:0] = values
