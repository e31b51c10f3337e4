"""A function of one example, executed for each example of a batch by itself."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf_bandmf.keras.clipping.independence.state import NotIndependent
from tf_bandmf.keras.clipping.independence.vectorizable import may_vectorize
from tf_bandmf.keras.compat.graphs import FuncGraph, depends_on_arguments
from tf_bandmf.keras.compat.vectorizing import (
    vectorized_map,
    without_broadcasting_products,
)


def map_each(
    function: Callable[[Any], Any],
    elements: Any,
    signature: Any,
    parallel_iterations: int | None = None,
) -> Any:
    """`tf.map_fn`, after which TensorFlow is as it was, also if the function raises.

    Where that happens in a graph, `tf.map_fn` leaves a caching device in the variable
    scope, which graphs share with the program around them: no distribution strategy could
    be entered any more in this process.

    Args:
      function: of the elements of one example.
      elements: structure of tensors [N, ...].
      signature: structure of specs of what it returns.
      parallel_iterations: as for `tf.map_fn`.

    Returns:
      Structure of tensors [N, ...].
    """
    scope = tf.compat.v1.get_variable_scope()
    before = scope.caching_device
    try:
        return tf.map_fn(
            function,
            elements,
            fn_output_signature=signature,
            parallel_iterations=parallel_iterations,
        )
    finally:
        if not tf.executing_eagerly():
            scope.set_caching_device(before)


def map_examples(
    function: Callable[[Any], list[tf.Tensor]], elements: Any, name: str
) -> list[tf.Tensor]:
    """Maps a function over examples, in a graph: of a batch it sees no other example.

    It is vectorized if TensorFlow's conversions of its operations are known; else a loop.

    Args:
      function: of nested tensors, those of one example; returns a list of tensors.
      elements: nested tensors [B, ...].
      name: what runs, for messages.

    Returns:
      Tensors [B, ...].

    Raises:
      NotIndependent: if the function reads another tensor that may be of examples.
      Exception: what the function itself raises, whenever it is called.
    """
    with without_broadcasting_products():
        signature, graph = _of_one(function, elements)
        if any(depends_on_arguments(outside) for outside, _ in graph.captures):
            raise NotIndependent(
                f"{name} is executed for each example by itself, but reads a tensor of "
                f"the whole batch that it was not given"
            )
        if may_vectorize(graph.get_operations()):
            outputs = _vectorized(function, elements)
            if outputs is not None:
                return outputs
        return list(map_each(function, elements, signature, parallel_iterations=1))


def _of_one(
    function: Callable[[Any], list[tf.Tensor]], elements: Any
) -> tuple[list[tf.TensorSpec], Any]:
    """What the function returns for one example, and the graph that computes it."""
    beside = FuncGraph("one_example")
    with beside.as_default():
        placeholders = tf.nest.map_structure(
            lambda t: tf.compat.v1.placeholder(t.dtype, t.shape[1:]), elements
        )
        results = function(placeholders)
    signature = [tf.TensorSpec(out.shape, out.dtype) for out in results]
    return signature, beside


def _vectorized(
    function: Callable[[Any], list[tf.Tensor]], elements: Any
) -> list[Any] | None:
    """Results of all examples; None if vectorizing fails.

    What the function itself raises is passed on.
    """
    is_converting = False

    def noted(element: Any) -> list[tf.Tensor]:
        nonlocal is_converting
        is_converting = False
        results = function(element)
        is_converting = True
        return results

    try:
        with _silent():
            return list(vectorized_map(noted, elements))
    except Exception:
        if is_converting:
            return None
        raise


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keeps the pages that TensorFlow logs of an operation that it cannot convert."""

    def is_wanted(record: logging.LogRecord) -> bool:
        return record.module != "pfor"

    log = tf.get_logger()
    log.addFilter(is_wanted)
    try:
        yield
    finally:
        log.removeFilter(is_wanted)
