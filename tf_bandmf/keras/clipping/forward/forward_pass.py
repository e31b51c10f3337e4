"""The forward pass of a step, which must not mix examples."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.forward.structure import Structure, structure_of
from tf_bandmf.keras.clipping.forward.tapped_layers import Unit
from tf_bandmf.keras.clipping.forward.taps import Recorder
from tf_bandmf.keras.clipping.independence.state import (
    DRAWS,
    refuse_effects,
    side_effects,
)
from tf_bandmf.keras.clipping.losses.compiled import compiled_loss, per_example_losses
from tf_bandmf.keras.clipping.rules import LayerCall
from tf_bandmf.keras.clipping.tensors import batches
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.compat.graphs import forget_gradients, origin
from tf_bandmf.keras.compat.keras_objects import (
    added_losses,
    all_layers,
    handles,
    metric_handles,
)
from tf_bandmf.keras.compat.recurrent import run_model
from tf_bandmf.keras.compat.seeds import used_generators


class Forward(NamedTuple):
    """A recorded forward pass.

    Attributes:
      y_pred: the model's output.
      losses: [B], per-example losses.
      calls: the recorded calls to layers, in the order in which they start.
      tape: the tape for the gradients of the losses with respect to the calls' taps
        (the tensors for which norm rules request gradients).
    """

    y_pred: Any
    losses: tf.Tensor
    calls: Sequence[tuple[Unit, LayerCall]]
    tape: tf.GradientTape


@contextlib.contextmanager
def recorded_forward(
    model: keras.Model,
    variables: Sequence[Any],
    data: Any,
    structure: Structure | None,
) -> Iterator[Forward]:
    """Runs a model and its loss, and checks that they do not mix examples.

    The model runs with an unknown batch size, even if the caller knows it, so that any
    use of the batch size can be detected.

    Args:
      model: a built and compiled model.
      variables: its trainable variables.
      data: (x, y, sample_weight), tensors [B, ...].
      structure: the result of `structure_of` for such data, if it is already known.

    Yields:
      The recorded forward pass. Operations that the `with` block creates belong to the
      training step, so they are checked, too.

    Raises:
      UnsupportedModelError: if an example's gradient may depend on other examples, a
        weight is read outside its layer, a layer adds a loss, or the step changes a
        variable.
    """
    x, y, sample_weight = batches.map_tensors(_without_batch_size, data)
    structure = structure or structure_of(model, x, variables)
    recorder = Recorder(structure.units, structure.calls, x)
    try:
        with recorder.tape, used_generators() as generators:
            with recorder.tapping():
                y_pred = run_model(model, x)
            _refuse_added_losses(model)
            losses = per_example_losses(compiled_loss(model), y, y_pred, sample_weight)
        if {id(v) for v in model.trainable_variables} != {id(v) for v in variables}:
            raise UnsupportedModelError(
                f"Model {model.name!r} created weights in its first call. Call the model "
                f"once on data before training, so that all weights are known."
            )
        _check_reads(model, variables, recorder)
        yield Forward(y_pred, losses, recorder.calls, recorder.tape)
        operations = tf.compat.v1.get_default_graph().get_operations()
        seeds = handles(generator.state for generator in generators)
        refuse_effects(operations[recorder.start :], seeds, metric_handles(model))
    finally:
        for _, call in recorder.calls:
            forget_gradients(call.replaced)


def _without_batch_size(tensor: tf.Tensor) -> tf.Tensor:
    if tensor.shape[0] is None:
        # The batch size is already unknown, so the placeholder below is not needed.
        # With the placeholder, XLA would recompile the step for each batch.
        return tensor
    return tf.raw_ops.PlaceholderWithDefault(
        input=tensor, shape=[None, *tensor.shape[1:]]
    )


def _refuse_added_losses(model: keras.Model) -> None:
    for layer in all_layers(model):
        if added_losses(layer):
            raise UnsupportedModelError(
                f"Layer {layer.name!r} ({type(layer).__name__}) added a loss with "
                "`add_loss` or an activity regularizer. Such a loss is not per example, "
                "so its gradient cannot be clipped. Remove the loss, or make its value "
                "an output of the model, and give this output a loss function."
            )


def _check_reads(
    model: keras.Model, variables: Sequence[Any], recorder: Recorder
) -> None:
    """Refuses reads of weights outside of recorded calls.

    Per-example gradients come only from recorded calls. If a weight is also read
    elsewhere (by a decoder that uses an embedding table, or a loss that penalizes a
    kernel), a part of its gradient would silently be lost.

    Raises:
      UnsupportedModelError: if there is such a read, or if a layer whose rule runs it
        twice (`Rule.runs_again`) draws random numbers that cannot be repeated.
    """
    owners = {key: variable for variable in variables for key in handles([variable])}
    operations = tf.compat.v1.get_default_graph().get_operations()[recorder.start :]
    for number, operation in enumerate(operations, recorder.start):
        unit = recorder.unit_of.get(number)
        read = {id(origin(t)) for t in operation.inputs if t.dtype == tf.resource}
        for handle in owners.keys() & read:
            if unit is not None and handle in handles(unit.variables):
                continue
            raise UnsupportedModelError(
                f"Weight {owners[handle].path!r} of model {model.name!r} is read outside "
                f"the call of its own layer, by operation {operation.name!r}, so part of "
                "the weight's gradient would not be clipped. Use the weight in one layer "
                "only. To share the weight, call that layer twice; for a tied output "
                "projection, use `keras.layers.ReversibleEmbedding`."
            )
        if unit and unit.rule.runs_again and side_effects(operation) & DRAWS:
            raise UnsupportedModelError(
                f"Layer {unit.layer.name!r} ({type(unit.layer).__name__}) draws random "
                f"numbers with {operation.type}, which cannot draw the same numbers "
                "again. Use `keras.random` with a `keras.random.SeedGenerator`."
            )
