"""Metrics see data without noise: they write only their own state, and nothing reads it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_bandmf.keras.clipping.errors import UnsupportedModelError
from tf_bandmf.keras.clipping.independence.state import assigns, may_write
from tf_bandmf.keras.clipping.reads import captured_handles
from tf_bandmf.keras.clipping.variables import VariableIndex


@contextlib.contextmanager
def metrics_change_no_weights(model: keras.Model) -> Iterator[None]:
    """Refuses metrics that, when they are updated in the body, change what is not theirs.

    In a graph every variable is seen; eagerly the model's weights are.

    Args:
      model: the model whose metrics are updated.

    Yields:
      Nothing.

    Raises:
      UnsupportedModelError: if one does, with the weight or the operation.
    """
    weights = [v for v in model.weights if "seed_generator" not in v.path]
    if tf.executing_eagerly():
        before = [np.array(weight.numpy()) for weight in weights]
        yield
        for weight, old in zip(weights, before, strict=True):
            if not np.array_equal(old, weight.numpy(), equal_nan=True):
                _refuse(model, weight)
        return
    graph = tf.compat.v1.get_default_graph()
    start = len(graph.get_operations())
    yield
    index = VariableIndex(weights)
    captured = captured_handles(graph)
    own = metric_handles(model)
    for op in graph.get_operations()[start:]:
        for tensor in op.inputs:
            if tensor.dtype != tf.resource:
                continue
            handle = captured.get(id(tensor), tensor)
            if id(handle) in own:
                continue
            weight = index.owner(handle)
            if weight is not None and may_write(op):
                _refuse(model, weight)
            if weight is not None or not assigns(op):
                continue
            raise UnsupportedModelError(
                f"A metric of model {model.name!r} writes a variable that is not its own "
                f"(in {op.name!r}): whatever reads it would carry training data past "
                "clipping and noise. Keep the state of a metric in variables that "
                "`self.add_variable` makes."
            )


@contextlib.contextmanager
def update_reads_no_metrics(model: keras.Model) -> Iterator[None]:
    """Refuses an update of the weights, made in the body, that reads a metric.

    A schedule, a constraint, a regularizer or an inner optimizer that reads the training
    loss would carry it into the weights. Seen in graphs, not eagerly.

    Args:
      model: the model whose weights are updated.

    Yields:
      Nothing.

    Raises:
      UnsupportedModelError: if it does, with the operation.
    """
    if tf.executing_eagerly():
        yield
        return
    graph = tf.compat.v1.get_default_graph()
    start = len(graph.get_operations())
    yield
    captured = captured_handles(graph)
    metrics = metric_handles(model)
    for op in graph.get_operations()[start:]:
        for tensor in op.inputs:
            if tensor.dtype != tf.resource:
                continue
            if id(captured.get(id(tensor), tensor)) in metrics:
                raise UnsupportedModelError(
                    f"The update of the weights of model {model.name!r} reads a metric "
                    f"(in {op.name!r}): an exact statistic of the training data would "
                    "reach the weights. Remove it from the learning rate, constraint, "
                    "regularizer or inner optimizer that reads it."
                )


def metric_handles(model: keras.Model) -> set[int]:
    """Ids of the handles of a model's metrics, those not yet built for data included."""
    handles = set()
    compiled = getattr(model, "_compile_metrics", None)
    given = (
        getattr(compiled, "_user_metrics", None),
        getattr(compiled, "_user_weighted_metrics", None),
    )
    variables = list(model.metrics_variables)
    for metric in keras.tree.flatten(given):
        # Names and functions have no variables yet: nothing can have read them.
        if isinstance(metric, keras.metrics.Metric):
            variables.extend(metric.variables)
    for variable in variables:
        raw = variable._value
        for part in (raw, *getattr(raw, "values", ())):
            handles.add(id(getattr(part, "handle", None)))
    return handles


def _refuse(model: keras.Model, weight: Any) -> None:
    raise UnsupportedModelError(
        f"A metric of model {model.name!r} changes the weight {weight.path!r}: it would "
        "carry training data past clipping and noise into the model. Keep the state of a "
        "metric in variables of its own."
    )
