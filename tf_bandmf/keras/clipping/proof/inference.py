"""Whether a model, as it is evaluated, keeps records apart: the analysis of the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.independence.trace import Trace, recording
from tf_bandmf.keras.clipping.losses.compiled import compiled_loss, per_example_losses
from tf_bandmf.keras.clipping.tensors import batches

Measure = Callable[[Any, Callable[[], tf.Tensor]], tf.Tensor]


def measured_rows(
    model: keras.Model, x: Any, y: Any, measure: Measure, alone: bool = False
) -> tf.Tensor:
    """Evaluates a model in the current graph, and shows that the graph may run.

    Args:
      model: built.
      x: inputs, tensors [B, ...] that are arguments of the graph.
      y: targets, likewise.
      measure: function of the outputs, and of a function that returns the compiled loss of
        each record alone; returns a tensor [B, ...].
      alone: whether there is one record, which nothing else can be mixed with.

    Returns:
      What `measure` returned: row i is of record i.

    Raises:
      NotIndependent: if a row may depend on other records, a variable is changed, code of
        the host runs, or something stops for some values of a record.
    """
    trace = Trace(batches.tensor_leaves((x, y)))
    with recording(trace):
        y_pred = model(x, training=False)

        def losses() -> tf.Tensor:
            return per_example_losses(compiled_loss(model), y, y_pred, None)

        found = measure(y_pred, losses)
    if not alone:
        for leaf in batches.tensor_leaves(y_pred):
            trace.require(leaf)
        trace.require(found)
        trace.check()
        trace.check_isolation()
    trace.refuse_state(_no, _no)
    return found


def _no(handle: Any) -> bool:
    return False
