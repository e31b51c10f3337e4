"""Makes metrics NaN if a record makes them raise, so that the run continues.

The metrics' own graph is analysed: what some value could stop is called from Python,
where its error is caught; the rest stays in the step. Under XLA nothing raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.graphs.totality import stopping_operations
from tf_bandmf.graphs.walking import Scope
from tf_bandmf.keras.clipping import UnsupportedModelError, metrics_change_no_weights
from tf_bandmf.keras.compat.total_lookups import host_errors_become_nan
from tf_bandmf.noise.devices import traced_under_xla


def metrics_of(model: Any, seen: Sequence[Any], tracker: Any) -> dict[str, Any]:
    """The metrics of a batch, NaN where they raise for its records.

    An error during tracing is a mistake in the program and is raised.

    Args:
      model: private and compiled.
      seen: (x, y, y_pred, sample_weight), of `compute_metrics`.
      tracker: of the loss, which stays as it is.

    Raises:
      UnsupportedModelError: on several replicas, if a value could stop the metrics.
    """
    with host_errors_become_nan():
        # What XLA compiles does not stop. (`jit_compile` compiles gradients alone.)
        if traced_under_xla():
            return _computed(model, seen)
        return _in_graph(model, seen, tracker)


def _computed(model: Any, seen: Sequence[Any]) -> dict[str, Any]:
    found: dict[str, Any] = model.compute_metrics(*seen)
    return found


def _caught(
    model: Any, compute: Callable[[], dict[str, Any]], tracker: Any
) -> dict[str, Any]:
    try:
        return compute()
    except UnsupportedModelError:
        raise
    except Exception:
        # Until they are reset: what was added up is not all.
        for metric in model.metrics:
            if metric is not tracker:
                for variable in metric.variables:
                    if variable.dtype.startswith("float"):
                        variable.assign(variable * float("nan"))
        results: dict[str, Any] = model.get_metrics_result()
        return results


def _in_graph(model: Any, seen: Sequence[Any], tracker: Any) -> dict[str, Any]:
    structure = list(seen)
    tensors = [t for t in keras.tree.flatten(structure) if isinstance(t, tf.Tensor)]

    def compute(*given: tf.Tensor) -> dict[str, Any]:
        by_id = {id(t): g for t, g in zip(tensors, given, strict=True)}
        found = keras.tree.map_structure(lambda t: by_id.get(id(t), t), structure)
        with metrics_change_no_weights(model):
            return _computed(model, found)

    traced = tf.function(compute, autograph=False).get_concrete_function(
        *[tf.TensorSpec(t.shape, t.dtype) for t in tensors]
    )
    stopping = _first_that_stops(traced.graph)
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    is_closed = not any(map(tf.is_symbolic_tensor, traced.graph.external_captures))
    if stopping is None:
        if replicas > 1 or not is_closed:
            return _computed(model, seen)
        logs: dict[str, Any] = traced(*tensors)
        return logs
    op, reason = stopping
    if replicas > 1 or not is_closed:
        raise UnsupportedModelError(
            f"The metrics of model {model.name!r}: operation {op.name!r} ({op.type}) "
            f"{reason}. Remove the metric, or clip positions to their bounds."
        )
    outputs = traced.structured_outputs

    def called(*given: tf.Tensor) -> list[Any]:
        found = _caught(model, lambda: traced(*given), tracker)
        return [tf.convert_to_tensor(part) for part in keras.tree.flatten(found)]

    leaves = keras.tree.flatten(outputs)
    found = tf.py_function(called, tensors, [leaf.dtype for leaf in leaves])
    shaped = [
        tf.ensure_shape(f, leaf.shape) for f, leaf in zip(found, leaves, strict=True)
    ]
    packed: dict[str, Any] = keras.tree.pack_sequence_as(outputs, shaped)
    return packed


def _first_that_stops(graph: Any) -> tuple[Any, str] | None:
    """The first operation that data, or what a metric kept of them, could stop."""
    data = {id(t): t.dtype != tf.resource for t in graph.inputs}
    operations = graph.get_operations()
    for op in operations:
        if op.type == "ReadVariableOp":
            data[id(op.outputs[0])] = True
    found = stopping_operations(operations, Scope(data), graph.outputs, {})
    return next(iter(found), None)
