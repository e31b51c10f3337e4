"""Metrics see data without noise: they write no weights, and no model reads them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_bandmf.keras.clipping.errors import UnsupportedModelError
from tf_bandmf.keras.clipping.independence.state import may_write
from tf_bandmf.keras.clipping.reads import captured_handles
from tf_bandmf.keras.clipping.variables import VariableIndex


@contextlib.contextmanager
def metrics_change_no_weights(model: keras.Model) -> Iterator[None]:
    """Refuses metrics that, when they are updated in the body, change a weight.

    Args:
      model: the model whose metrics are updated.

    Yields:
      Nothing.

    Raises:
      UnsupportedModelError: if one does, with the weight.
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
    for op in graph.get_operations()[start:]:
        for tensor in op.inputs:
            if tensor.dtype != tf.resource:
                continue
            weight = index.owner(captured.get(id(tensor), tensor))
            if weight is not None and may_write(op):
                _refuse(model, weight)


def metric_handles(model: keras.Model) -> set[int]:
    """Ids of the handles of a model's metrics."""
    handles = set()
    for variable in model.metrics_variables:
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
