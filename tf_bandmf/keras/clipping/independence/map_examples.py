"""A function of one example, executed for each example of a batch by itself."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf_bandmf.graphs.functions import made_once
from tf_bandmf.graphs.mapping import map_each
from tf_bandmf.graphs.operations import BRANCHES
from tf_bandmf.graphs.walking import Scope, has_node, live, walk
from tf_bandmf.keras.clipping.independence.trace import current_trace
from tf_bandmf.keras.clipping.independence.vectorized import rows_stay_apart
from tf_bandmf.keras.compat.graphs import FuncGraph
from tf_bandmf.keras.compat.vectorizing import (
    vectorized_map,
    without_broadcasting_products,
)

# They act on nothing, and stop for nothing.
_HARMLESS = frozenset({"ReadVariableOp", "ResourceGather"})


def map_examples(
    function: Callable[[Any], list[tf.Tensor]],
    elements: Any,
    name: str,
    *,
    backward: bool = False,
    repeated: bool = True,
    vectorize: bool = True,
) -> list[tf.Tensor]:
    """Maps a function over examples, in a graph, and notes that they stay apart.

    Args:
      function: of nested tensors, those of one example; returns a list of tensors.
      elements: nested tensors [B, ...].
      name: what runs, for messages.
      backward: whether there are gradients among the elements.
      repeated: whether the function runs a second time for its gradient.
      vectorize: whether it may be vectorized.

    Returns:
      Tensors [B, ...].

    Raises:
      Exception: what the function itself raises, whenever it is called.
    """
    # Nothing else has seen the copies: who reads them reads one example of them.
    copies = tf.nest.map_structure(tf.identity, elements)
    with without_broadcasting_products():
        outputs, of_one = _mapped(function, copies, vectorize)
    trace = current_trace()
    if trace is not None:
        flat = (tf.nest.flatten(elements), tf.nest.flatten(copies))
        trace.isolated(
            name, *flat, outputs, of_one, backward=backward, repeated=repeated
        )
    return outputs


def _mapped(
    function: Callable[[Any], list[tf.Tensor]], elements: Any, vectorize: bool
) -> tuple[list[Any], list[Any]]:
    """Vectorized if the graph that this makes keeps examples apart; else a loop.

    Returns:
      Results of all examples; if vectorized, those of one, from which they were made.
    """
    graph = tf.compat.v1.get_default_graph()
    of_one: list[Any] = []
    trace = current_trace()
    start = made = len(graph.get_operations())

    def noted(element: Any) -> list[tf.Tensor]:
        nonlocal made
        of_one[:] = function(element)
        made = len(graph.get_operations())
        return list(of_one)

    can_try = vectorize and _can_try(function, elements)
    outputs = _vectorized(noted, elements) if can_try else None
    if outputs is not None:
        kept = [out for out in of_one if out.graph is graph]
        if trace is not None and len(kept) == len(of_one):
            trace.needs_no_look(graph.get_operations()[made:])
        return outputs, kept
    if not of_one:
        specs = tf.nest.map_structure(
            lambda t: tf.TensorSpec(t.shape[1:], t.dtype), elements
        )
        tf.function(noted, autograph=False).get_concrete_function(specs)
    # What was made is not used; most of it is not run, then.
    if trace is not None:
        unused = graph.get_operations()[start:]
        running = {id(op) for op in live(unused, (), {})}
        trace.needs_no_look([op for op in unused if id(op) not in running])
    signature = [tf.TensorSpec(out.shape, out.dtype) for out in of_one]
    looped = map_each(function, elements, signature, parallel_iterations=1)
    return list(looped), []


def _vectorized(
    function: Callable[[Any], list[tf.Tensor]], elements: Any
) -> list[Any] | None:
    """Results of all examples; None if vectorizing fails, or does not keep them apart.

    What the function itself raises is passed on.
    """
    trace = current_trace()
    known: list[Any] = []
    is_converting = False

    def noted(element: Any) -> list[tf.Tensor]:
        nonlocal is_converting
        is_converting = False
        results = function(element)
        is_converting = True
        return results

    try:
        with _silent():
            outputs = list(vectorized_map(noted, elements, known))
    except Exception:
        if is_converting:
            return None
        raise
    batch = trace.static_batch if trace else None
    is_apart = rows_stay_apart(outputs, tf.nest.flatten(elements), known, batch)
    return outputs if is_apart else None


def _can_try(function: Callable[[Any], list[tf.Tensor]], elements: Any) -> bool:
    """Whether an attempt to vectorize may stand in the graph, whatever becomes of it.

    Found in graphs beside: what reads weights would run, whether it is used or not, and
    so would what draws and loops that read weights, with what a failed attempt left open.
    """
    beside = FuncGraph("one_example")
    with beside.as_default():
        function(_given(elements, 1))
    if _branches(beside):
        return False
    if not _acts(beside):
        return True
    with FuncGraph("attempt").as_default():
        return _vectorized(function, _given(elements, 0)) is not None


def _given(elements: Any, first_axis: int) -> Any:
    """Arguments of the graph that is made: all examples, or one without their axis."""
    return tf.nest.map_structure(
        lambda t: tf.compat.v1.placeholder(t.dtype, t.shape[first_axis:]), elements
    )


def _branches(graph: Any) -> bool:
    """Whether an example decides about what runs, which sorts examples if vectorized."""

    def has_branch(op: Any, name: str, scope: Scope) -> bool:
        return has_node(op.graph, name, lambda node: node.op in BRANCHES)

    with made_once():
        return any(
            op.type in BRANCHES and scope.depends(op.inputs[0])
            for op, scope in walk(graph.get_operations(), Scope({}), has_branch)
        )


def _acts(graph: Any) -> bool:
    """Whether there is something that TensorFlow runs even if nobody reads its result."""
    return any(
        op.op_def and op.op_def.is_stateful and op.type not in _HARMLESS
        for op in graph.get_operations()
    )


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
