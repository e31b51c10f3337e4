"""Makes variables before they are used: making one in a trace costs a second trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.compat.keras_objects import compile_metrics, keras_backend


def build_metrics(
    model: keras.Model, x: Any, y: Any, y_pred: Any, sample_weight: Any
) -> None:
    """Makes the variables of a model's compiled metrics outside of the current graph.

    Like Keras on other backends, it updates the metrics once in a graph that is thrown
    away.

    Args:
      model: a compiled model.
      x: inputs, tensors; only shapes and dtypes matter, as for the others.
      y: targets.
      y_pred: predictions.
      sample_weight: weights, or None.
    """
    metrics = compile_metrics(model)
    if metrics is None or metrics.built:
        return
    x, y, y_pred, sample_weight = keras.tree.map_structure(
        _symbolic, (x, y, y_pred, sample_weight)
    )
    with tf.init_scope(), tf.variable_creator_scope(_at_once):
        keras_backend.compute_output_spec(
            model.compute_metrics, x, y, y_pred, sample_weight=sample_weight
        )


def _at_once(make: Callable[..., Any], **arguments: Any) -> Any:
    """Makes a variable that `tf.function` does not initialize, for it traces twice then."""
    return make(**{**arguments, "experimental_enable_variable_lifting": False})


def _symbolic(tensor: Any) -> Any:
    if tensor is None:
        return None
    return keras.KerasTensor(
        tensor.shape, keras_backend.standardize_dtype(tensor.dtype)
    )
