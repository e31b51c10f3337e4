"""What TensorFlow does in Python for each operation that it traces, once or not at all.

Tracing a step makes about a thousand operations, one after the other. For each of them
TensorFlow writes out which dtypes would be allowed, enters the graph that it is in already,
and looks for resources among inputs that are none; and each number that stands in the code
becomes a constant of its own, which the optimizer of graphs finds to be the same later.

What tells that it broke: `tests/keras/compat/test_quick_tracing.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import (
    auto_control_deps,
    func_graph,
    op_def_library,
    ops,
)

from tf_bandmf.keras.compat.patching import patched

# What can stand for a resource, or holds some.
_RESOURCES = (tf.resource, tf.variant)
# Elements of constants that are shared.
_MOST_ELEMENTS = 8
_NUMBERS = (bool, int, float, str)

# Of a graph: its constants by their values.
_ATTRIBUTE = "_shared_constants"


@contextlib.contextmanager
def quick_tracing() -> Iterator[None]:
    """This thread makes the same graphs in its body, with less effort."""
    with contextlib.ExitStack() as stack:
        for owner, name, replacement in (
            (op_def_library, "_SatisfiesTypeConstraint", _satisfies),
            (auto_control_deps, "_get_resource_inputs", _resource_inputs),
            (func_graph.FuncGraph, "as_default", _as_default),
        ):
            stack.enter_context(patched(owner, name, replacement))
        yield


def _satisfies(
    original: Callable[..., Any], dtype: Any, attr_def: Any, param_name: Any
) -> None:
    # Both are numbers of an enumeration. The message alone needs the names of all dtypes.
    has_list = attr_def.HasField("allowed_values")
    if has_list and dtype not in attr_def.allowed_values.list.type:
        original(dtype, attr_def, param_name)


def _resource_inputs(original: Callable[..., Any], operation: Any) -> Any:
    if any(tensor.dtype in _RESOURCES for tensor in operation.inputs):
        return original(operation)
    return ()


def _as_default(original: Callable[..., Any], graph: Any) -> Any:
    if not tf.executing_eagerly() and ops.get_default_graph() is graph:
        return contextlib.nullcontext(graph)
    return original(graph)


@contextlib.contextmanager
def shared_constants() -> Iterator[None]:
    """Small constants that this thread makes in its body are made once for each graph.

    Those under control dependencies are made anew: they may stand for when they are made.
    """
    with patched(ops, "_create_graph_constant", _shared):
        yield


@contextlib.contextmanager
def own_constants() -> Iterator[None]:
    """Takes `shared_constants` back, for the code of others."""
    with patched(
        ops, "_create_graph_constant", lambda original, *args: original(*args)
    ):
        yield


def _own(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return original(*args, **kwargs)


def _shared(
    original: Callable[..., Any],
    value: Any,
    dtype: Any,
    shape: Any,
    name: Any,
    verify_shape: Any,
    allow_broadcast: Any,
) -> Any:
    graph = ops.get_default_graph()
    rest = verify_shape, allow_broadcast
    known_by = _key(value) if _is_plain(graph) else None
    if known_by is None:
        return original(value, dtype, shape, name, *rest)
    key = (known_by, dtype, None if shape is None else str(shape), _devices(graph))
    # The graph has them: what else did would keep it.
    known = getattr(graph, _ATTRIBUTE, None)
    if known is None:
        known = {}
        setattr(graph, _ATTRIBUTE, known)
    if key not in known:
        known[key] = original(value, dtype, shape, name, *rest)
    return known[key]


def _is_plain(graph: Any) -> bool:
    """Whether what is made now depends on nothing around it but the device."""
    return (
        isinstance(graph, func_graph.FuncGraph)
        and graph._get_control_flow_context() is None
        and not graph._current_control_dependencies()
        and not tuple(graph._colocation_stack.peek_objs())
    )


def _devices(graph: Any) -> tuple[str, ...]:
    return tuple(spec.display_name for spec in graph._device_function_stack.peek_objs())


def _key(value: Any) -> Any:
    """What is the same for equal values of equal types; None if it is not small."""
    if type(value) in _NUMBERS:
        return repr(value)
    if type(value) in (list, tuple) and len(value) <= _MOST_ELEMENTS:
        if all(type(item) in _NUMBERS for item in value):
            return repr(list(value))
    if isinstance(value, (np.ndarray, np.generic)) and value.size <= _MOST_ELEMENTS:
        if value.dtype.kind in "biuf":
            return value.dtype.str, value.shape, value.tobytes()
    return None
