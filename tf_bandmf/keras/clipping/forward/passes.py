"""The forward pass of the private step: taps, losses and reads of weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.forward.tapped_layers import Unit
from tf_bandmf.keras.clipping.forward.taps import Recorder, tapped
from tf_bandmf.keras.clipping.forward.weight_reads import ReadLog
from tf_bandmf.keras.clipping.independence.places import CallShape
from tf_bandmf.keras.clipping.independence.trace import Trace, recording
from tf_bandmf.keras.clipping.losses.compiled import compiled_loss, per_example_losses
from tf_bandmf.keras.clipping.tensors import batches
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.compat.keras_objects import (
    added_losses,
    all_layers,
    takes_training,
)
from tf_bandmf.keras.compat.recurrent import without_cudnn


@dataclasses.dataclass(frozen=True)
class Forward:
    """A recorded forward pass.

    Attributes:
      y_pred: the model's output.
      losses: [B], each example's loss alone.
      recorder: the calls of tapped layers.
      log: where weights were read.
    """

    y_pred: Any
    losses: tf.Tensor
    recorder: Recorder
    log: ReadLog


def run_model(model: keras.Model, x: Any) -> Any:
    """Calls a model the way Keras' training step does."""
    with without_cudnn():
        if takes_training(model):
            return model(x, training=True)
        return model(x)


def run_forward(
    model: keras.Model,
    variables: Sequence[Any],
    units: Sequence[Unit],
    data: Any,
    shapes: Sequence[CallShape],
    trace: Trace,
    before_losses: Callable[[Any, Any, Any, Any], None],
) -> Forward:
    """Runs the model and its loss, recording tapped calls.

    Args:
      model: a built and compiled model.
      variables: its trainable variables.
      units: the layers to tap.
      data: (x, y, sample_weight), tensors [B, ...].
      shapes: what is known about the batch dimension of each call.
      trace: notes what shows that examples are independent.
      before_losses: called with the model, targets, predictions and weights.

    Returns:
      The recorded pass.

    Raises:
      UnsupportedModelError: if a weight is read outside its layer, a layer is
        called inside a loop, or a layer adds a loss.
    """
    x, y, sample_weight = data
    loss = compiled_loss(model)
    log = ReadLog(model, variables)
    _, size = batches.batch_size(data)
    recorder = Recorder(units, log, shapes, size, trace)
    layers = {id(layer): layer for layer in all_layers(model)}
    layers.update((id(unit.layer), unit.layer) for unit in units)
    if all(unit.layer is not model for unit in units):
        layers.pop(id(model))
    with log.watching(), recording(trace):
        with tapped(recorder, list(layers.values())):
            y_pred = run_model(model, x)
        _refuse_added_losses(model)
        before_losses(model, y, y_pred, sample_weight)
        losses = per_example_losses(loss, y, y_pred, sample_weight)
    return Forward(y_pred, losses, recorder, log)


def _refuse_added_losses(model: keras.Model) -> None:
    for layer in all_layers(model):
        if added_losses(layer):
            raise UnsupportedModelError(
                f"Layer {layer.name!r} ({type(layer).__name__}) added a loss with "
                "`add_loss` or an activity regularizer. It is not per example, so it "
                "cannot be clipped. Remove it, or make it an output of the model with "
                "a loss of its own."
            )
