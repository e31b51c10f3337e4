"""Marks the operations that code of the user's puts into the backward pass.

`tf.custom_gradient` and `gradient_override_map` replace the gradient of an operation, and a
layer may run again for its gradient. What they make has an attribute, in the definitions
of functions, too; TensorFlow's own gradients, also those that they ask for, have none, nor
has what these put into loops and branches to keep values.

What tells that it broke: `tests/keras/compat/test_own_gradients.py`.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.eager import record
from tensorflow.python.framework import func_graph, op_def_registry, ops
from tensorflow.python.ops import custom_gradient

from tf_bandmf.keras.compat.patching import patched

_MARK = "_tf_bandmf_own_gradient"
_MADE, _RETURNED = 1, 2
_STATE = threading.local()
_MARKED: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
_OF_THE_STEP: set[types.CodeType] = set()


def of_the_step(function: Callable[..., Any]) -> Callable[..., Any]:
    """Says of a gradient that the step itself replaces another one by it."""
    _OF_THE_STEP.add(function.__code__)
    return function


def is_of_the_step(function: Callable[..., Any]) -> bool:
    """Whether `of_the_step` was said of a gradient."""
    return getattr(function, "__code__", None) in _OF_THE_STEP


def forget_gradients(operations: Iterable[Any]) -> None:
    """Takes back gradients that replaced those of operations, and will not be asked for.

    TensorFlow keeps each with the graph that it belongs to, as long as the process runs.
    """
    for op in operations:
        name = tf.compat.as_str(op.get_attr("_gradient_op_type"))
        ops.gradient_registry._registry.pop(name, None)


@contextlib.contextmanager
def runs_again() -> Iterator[None]:
    """Marks what a layer makes that runs a second time, for its gradient."""
    with _mark(_MADE):
        yield


@contextlib.contextmanager
def marked_gradients(
    is_known: Callable[[Callable[..., Any]], bool], called: Callable[[], None]
) -> Iterator[None]:
    """Marks what own gradients make, in this thread.

    Args:
      is_known: whether such a function is as good as TensorFlow's.
      called: is called with each function that is not.
    """

    def marking(function: Callable[..., Any]) -> Callable[..., Any]:
        return function if is_known(function) else _marking(function, called)

    def look_up(original: Callable[..., Any], registry: Any, key: Any) -> Any:
        function = original(registry, key)
        if function is None or registry is not ops.gradient_registry:
            return function
        name = tf.compat.as_str(key)
        if op_def_registry.get(name) is None and not is_call(name):
            return marking(function)
        return _unmarking(function)

    def recorded(
        original: Callable[..., None],
        op_type: str,
        output_tensors: Any,
        input_tensors: Any,
        backward_function: Callable[..., Any],
        forward_function: Callable[..., Any] | None = None,
    ) -> None:
        code = getattr(backward_function, "__code__", None)
        if code is not None and code.co_filename == custom_gradient.__file__:
            backward_function = marking(backward_function)
        original(
            op_type, output_tensors, input_tensors, backward_function, forward_function
        )

    with (
        patched(type(ops.gradient_registry), "lookup", look_up),
        patched(record, "record_operation", recorded),
        patched(func_graph.FuncGraph, "__init__", _begin),
    ):
        yield


def _begin(original: Callable[..., None], graph: Any, *args: Any, **kw: Any) -> None:
    """Begins the graph of a function, whose operations are marked like all others."""
    original(graph, *args, **kw)
    graph._attr_scope_map[_MARK] = _current


def _current(node: Any) -> Any:
    kind = getattr(_STATE, "mark", 0)
    return attr_value_pb2.AttrValue(i=kind) if kind else None


def is_call(name: str) -> bool:
    """Whether a gradient is one that TensorFlow registers for a call of a function."""
    return name.startswith(("PartitionedCall", "StatefulPartitionedCall"))


def is_own(op: Any) -> bool:
    """Whether an operation was made by an own gradient, or is in a function of one.

    A function that was made before has no marks.
    """
    while op is not None:
        if _mark_of(op):
            return True
        if _has_marks(op.graph):
            return False
        op = getattr(op.graph, "_calling_operation", None)
    return False


def _has_marks(graph: Any) -> bool:
    if graph not in _MARKED:
        _MARKED[graph] = any(_mark_of(op) for op in graph.get_operations())
    return _MARKED[graph]


def is_returned(op: Any) -> bool:
    """Whether an operation is what an own gradient returned."""
    return _mark_of(op) == _RETURNED


def is_own_node(node: Any) -> bool:
    """As `is_own`, of a node of a function's definition."""
    return _MARK in node.attr


def _mark_of(op: Any) -> int:
    try:
        return int(op.get_attr(_MARK))
    except ValueError:
        return 0


def _marking(
    function: Callable[..., Any], called: Callable[[], None]
) -> Callable[..., Any]:
    @functools.wraps(function)
    def marked(*args: Any) -> Any:
        called()
        with _mark(_MADE):
            found = function(*args)
            dense = tf.nest.map_structure(_dense, found)
        with _mark(_RETURNED):
            return tf.nest.map_structure(_copied, dense)

    return marked


def _dense(gradient: Any) -> Any:
    is_sparse = isinstance(gradient, tf.IndexedSlices)
    return tf.convert_to_tensor(gradient) if is_sparse else gradient


def _copied(gradient: Any) -> Any:
    return tf.identity(gradient) if tf.is_tensor(gradient) else gradient


def _unmarking(function: Callable[..., Any]) -> Callable[..., Any]:
    if not getattr(_STATE, "mark", 0):
        return function

    @functools.wraps(function)
    def unmarked(*args: Any) -> Any:
        with _mark(0):
            return function(*args)

    return unmarked


@contextlib.contextmanager
def _mark(kind: int) -> Iterator[None]:
    before = getattr(_STATE, "mark", 0)
    _STATE.mark = kind
    try:
        with ops.get_default_graph()._attr_scope({_MARK: _current}):
            yield
    finally:
        _STATE.mark = before
