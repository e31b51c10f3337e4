"""A function of one example, executed for each example of a batch by itself."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_bandmf.graphs.walking import called, has_node
from tf_bandmf.keras.clipping.independence import current_trace
from tf_bandmf.keras.compat.vectorizing import (
    CONVERTED,
    vectorized_map,
    without_broadcasting_products,
)


def map_examples(
    function: Callable[[Any], list[tf.Tensor]],
    elements: Any,
    name: str,
    *,
    backward: bool = False,
    repeated: bool = True,
) -> list[tf.Tensor]:
    """Maps a function over examples, vectorized, and notes that they stay apart.

    Args:
      function: of nested tensors, those of one example; returns a list of tensors.
      elements: nested tensors [B, ...].
      name: what runs, for messages.
      backward: whether there are gradients among the elements.
      repeated: whether the function runs a second time for its gradient.

    Returns:
      Tensors [B, ...].
    """
    # Nothing else has seen the copies: who reads them reads one example of them.
    copies = tf.nest.map_structure(tf.identity, elements)
    with without_broadcasting_products():
        outputs, of_one = _mapped(function, copies)
    trace = current_trace()
    if trace is not None:
        flat = (tf.nest.flatten(elements), tf.nest.flatten(copies))
        trace.isolated(
            name, *flat, outputs, of_one, backward=backward, repeated=repeated
        )
    return outputs


def _mapped(
    function: Callable[[Any], list[tf.Tensor]], elements: Any
) -> tuple[list[Any], list[Any]]:
    """Vectorized if TensorFlow's conversion is right for every operation; else a loop.

    The conversion of some operations counts on indices within bounds: an index that is
    not would be one of the next example.

    Returns:
      Results of all examples; if vectorized, those of one, from which they were made.
    """
    if tf.executing_eagerly():
        whole = tf.function(lambda given: _mapped(function, given)[0], autograph=False)
        return list(whole(elements)), []
    graph = tf.compat.v1.get_default_graph()
    start = len(graph.get_operations())
    of_one: list[Any] = []

    def noted(element: Any) -> list[tf.Tensor]:
        of_one[:] = function(element)
        return list(of_one)

    outputs = list(vectorized_map(noted, elements))
    made = graph.get_operations()[start:]
    if all(_converts(op) for op in made):
        trace = current_trace()
        if trace is not None:
            # A segment that does not exist is nobody's, by their conversion.
            trace.total(op for op in made if op.type.startswith("UnsortedSegment"))
        return outputs, [out for out in of_one if out.graph is graph]
    # What was made is not used, so that it is not run.
    signature = [tf.TensorSpec(out.shape[1:], out.dtype) for out in outputs]
    looped = tf.map_fn(
        function,
        elements,
        fn_output_signature=signature,
        parallel_iterations=1,
    )
    return list(looped), []


def _converts(op: Any) -> bool:
    """Whether an operation, with all that it calls, is converted row by row."""
    return op.type in CONVERTED and not any(
        has_node(op.graph, name, lambda node: node.op not in CONVERTED)
        for name, _ in called(op)
    )
