"""Evaluates a model; each result may depend on one record only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.forward.structure import structure_of
from tf_bandmf.keras.clipping.independence.map_examples import map_examples
from tf_bandmf.keras.clipping.independence.state import refuse_effects
from tf_bandmf.keras.clipping.losses.compiled import compiled_loss, per_example_losses
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.compat.keras_objects import compile_loss

Measure = Callable[[Any, Any, Callable[[], tf.Tensor]], tf.Tensor]


def measured_rows(
    model: keras.Model, x: Any, y: Any, measure: Measure, alone: bool = False
) -> tf.Tensor:
    """Evaluates a model in the current graph, and checks that it does not mix records.

    Args:
      model: a built model.
      x: inputs, tensors [B, ...] that are arguments of the graph.
      y: targets, likewise.
      measure: function that returns a tensor [B, ...]. It gets the targets, the
        outputs, and a function that returns the compiled loss of each record.
      alone: True if the batch is a single record, which cannot be mixed with others.

    Returns:
      The result of `measure`, whose row i depends only on record i.

    Raises:
      UnsupportedModelError: if a row may depend on other records, a variable is changed,
        or code outside of the graph runs.
    """
    if not alone and structure_of(model, x, training=False).alone:
        raise UnsupportedModelError("Some layers may mix the records of a batch.")
    graph = tf.compat.v1.get_default_graph()
    start = len(graph.get_operations())
    y_pred = model(x, training=False)

    def losses() -> tf.Tensor:
        return per_example_losses(compiled_loss(model), y, y_pred, None)

    if alone:
        rows = measure(y, y_pred, losses)
    else:
        given = [] if compile_loss(model) is None else [losses()]

        def of_one(record: Any) -> list[tf.Tensor]:
            y, y_pred, *loss = keras.tree.map_structure(lambda t: t[None], record)
            return [measure(y, y_pred, lambda: loss[0] if loss else losses())[0]]

        (rows,) = map_examples(of_one, (y, y_pred, *given), "A metric")
    refuse_effects(graph.get_operations()[start:])
    return rows
