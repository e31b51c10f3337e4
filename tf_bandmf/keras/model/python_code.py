"""Finds Python code that sees the records of a step: the user's metrics.

See `clipping/forward/eager_traces.py` for what follows from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import keras

from tf_bandmf.graphs.definitions import (
    foreign_attributes,
    is_defined_by,
    is_written_by,
    replaced_methods,
)
from tf_bandmf.graphs.walking import called, has_node
from tf_bandmf.keras.compat.keras_objects import (
    all_layers,
    compile_metrics,
    given_metrics,
    metric_function,
)

# Packages whose classes keep nothing of a batch in Python.
_KNOWN = frozenset({"keras", "keras_hub", "tf_bandmf"})
# What metrics of theirs may be made of.
_PARTS = _KNOWN | {"builtins", "numpy", "tensorflow"}
_METHODS = ("compute_metrics", "get_metrics_result", "reset_metrics")


def foreign_metrics(model: Any) -> list[str]:
    """Names of a model's metrics that are not Keras' own, after a step has used them.

    A metric is Keras' own if Keras defines its exact class and the function in it.

    Args:
      model: private and compiled.
    """
    # The private classes are made by this package; whose methods they have is asked.
    methods = [getattr(type(model), name) for name in _METHODS]
    found = [m.__qualname__ for m in methods if not _is_known(m)]
    for metric in _metrics_of(model):
        own = [
            getattr(part, "__qualname__", type(part).__qualname__)
            for part in (type(metric), metric_function(metric))
            if part is not None and not _is_known(part)
        ]
        if not own and _has_foreign_parts(metric):
            own = [f"an attribute of {type(metric).__qualname__}"]
        found += own
    return found


def _has_foreign_parts(metric: Any) -> bool:
    """Whether methods or variables of a metric of Keras were replaced."""
    held = metric.variables
    parts = [metric, *held, *(variable.value for variable in held)]
    return any(
        replaced_methods(part, _PARTS) or foreign_attributes(part, _PARTS)
        for part in parts
    )


def foreign_layers(model: Any) -> list[str]:
    """Names of classes of a model's layers that are not of Keras."""
    kinds = {type(layer) for layer in all_layers(model, include_self=False)}
    # A private model has a class of its own, which is made.
    kinds |= {kind for kind in type(model).__mro__ if "call" in vars(kind)}
    return sorted(kind.__qualname__ for kind in kinds if not _is_known(kind))


def calls_python(operations: Iterable[Any]) -> bool:
    """Whether operations, or the functions that they call, run Python code."""

    def matches(node: Any) -> bool:
        return "PyFunc" in node.op

    return any(
        matches(op.node_def)
        or any(has_node(op.graph, name, matches) for name, _ in called(op))
        for op in operations
    )


def _metrics_of(model: Any) -> Iterator[Any]:
    compiled = compile_metrics(model)
    given = [m for m in keras.tree.flatten(given_metrics(model)) if m is not None]
    if compiled is not None and compiled.built:
        yield from compiled.metrics
    else:
        yield from (m for m in given if not isinstance(m, str))
    for metric in model.metrics:
        if metric is not compiled:
            yield metric


def _is_known(part: Any) -> bool:
    """Whether a class, or a function, or an object of a class, is of a known package."""
    return is_defined_by(part, _KNOWN) or is_written_by(part, _KNOWN)
