"""A function of one example, executed for each example of a batch by itself."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf_bandmf.keras.clipping.independence.trace import current_trace
from tf_bandmf.keras.clipping.independence.vectorizable import may_vectorize
from tf_bandmf.keras.compat.graphs import FuncGraph
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
    function: Callable[[Any], list[tf.Tensor]],
    elements: Any,
    name: str,
    *,
    repeated: bool = True,
) -> list[tf.Tensor]:
    """Maps a function over examples, in a graph, and notes that they stay apart.

    Args:
      function: of nested tensors, those of one example; returns a list of tensors.
      elements: nested tensors [B, ...].
      name: what runs, for messages.
      repeated: whether the function runs a second time for its gradient.

    Returns:
      Tensors [B, ...].

    Raises:
      Exception: what the function itself raises, whenever it is called.
    """
    # Nothing else has seen the copies: who reads them reads one example of them.
    copies = tf.nest.map_structure(tf.identity, elements)
    with without_broadcasting_products():
        outputs = _mapped(function, copies)
    trace = current_trace()
    if trace is not None:
        flat = (tf.nest.flatten(elements), tf.nest.flatten(copies))
        trace.isolated(name, *flat, outputs, repeated=repeated)
    return outputs


def _mapped(function: Callable[[Any], list[tf.Tensor]], elements: Any) -> list[Any]:
    """Vectorized if TensorFlow's conversions of its operations are known; else a loop."""
    signature, operations = _of_one(function, elements)
    if may_vectorize(operations):
        outputs = _vectorized(function, elements)
        if outputs is not None:
            return outputs
    looped = map_each(function, elements, signature, parallel_iterations=1)
    return list(looped)


def _of_one(
    function: Callable[[Any], list[tf.Tensor]], elements: Any
) -> tuple[list[tf.TensorSpec], list[Any]]:
    """What the function returns for one example, and the operations that it takes."""
    beside = FuncGraph("one_example")
    with beside.as_default():
        placeholders = tf.nest.map_structure(
            lambda t: tf.compat.v1.placeholder(t.dtype, t.shape[1:]), elements
        )
        results = function(placeholders)
    signature = [tf.TensorSpec(out.shape, out.dtype) for out in results]
    return signature, beside.get_operations()


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
