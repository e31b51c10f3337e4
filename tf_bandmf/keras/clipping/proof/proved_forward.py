"""The forward pass of the step that runs, with the proof that it keeps examples apart."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.forward.passes import Forward, run_forward
from tf_bandmf.keras.clipping.forward.tapped_layers import find_units
from tf_bandmf.keras.clipping.independence.state import Effect, NotIndependent, effects
from tf_bandmf.keras.clipping.independence.trace import Trace, recording
from tf_bandmf.keras.clipping.losses.alone_and_together import check_loss
from tf_bandmf.keras.clipping.proof.judge import (
    ADVICE,
    CUT_ADVICE,
    PREPROCESSING,
    structure_of,
)
from tf_bandmf.keras.clipping.tensors import batches
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.clipping.tensors.variables import (
    tensorflow_variable,
    trainable_variables,
)
from tf_bandmf.keras.compat.keras_objects import compile_loss, metric_handles
from tf_bandmf.keras.compat.seeds import used_generators

# Of a model: its losses that were tried on made-up outputs, and for which data.
_TRIED: weakref.WeakKeyDictionary[Any, set[Any]] = weakref.WeakKeyDictionary()
_STATE_ADVICE = (
    "State computed from data would be released with the model without noise, or reach "
    "the next step past clipping. Remove it or freeze its layer."
)


@contextlib.contextmanager
def proved_forward(
    model: keras.Model, variables: Sequence[Any], data: Any
) -> Iterator[Forward]:
    """Runs the model and its loss in the current graph, and shows that it may run.

    The batch size is unknown while the graph is made, even if it is known, so that the
    model cannot compute with it unseen.

    Args:
      model: a built and compiled model.
      variables: its trainable variables.
      data: (x, y, sample_weight), tensors [B, ...].

    Yields:
      The recorded pass; what is made of it in the body belongs to the step.

    Raises:
      UnsupportedModelError: if an example's gradient may depend on other examples, or
        the step changes a variable.
    """
    alone: tuple[Any, ...] = ()
    data = batches.map_tensors(_without_batch_size, data)
    while True:
        structure = structure_of(model, data[0], variables, alone)
        alone = structure.alone
        units = find_units(model, variables, alone)
        trace = Trace(batches.tensor_leaves(data))
        with used_generators() as generators:
            forward = run_forward(
                model, variables, units, data, structure.calls, trace, _try_loss
            )
        if {id(v) for v in trainable_variables(model)} != {id(v) for v in variables}:
            raise UnsupportedModelError(
                f"Model {model.name!r} created weights in its first call. Call it once on "
                f"data before training, so that all weights are known."
            )
        refuse_state(model, forward, trace, generators)
        more = _enclosing_derivative(model, forward, trace, alone)
        if more is None:
            break
        trace.done()
        alone = (*alone, more)
    _refuse_unrepeatable(forward)
    try:
        with recording(trace):
            yield forward
    finally:
        trace.done()
    refuse_shared_reads(model, trace)
    refuse_state(model, forward, trace, generators)


def _try_loss(model: keras.Model, y: Any, y_pred: Any, sample_weight: Any) -> None:
    """Checks a compiled loss once for data of these shapes."""
    key = id(compile_loss(model)), batches.specs_of((y, y_pred, sample_weight))
    tried = _TRIED.setdefault(model, set())
    if key not in tried:
        check_loss(model, y, y_pred, sample_weight)
        tried.add(key)


def _without_batch_size(tensor: tf.Tensor) -> tf.Tensor:
    if tensor.shape[0] is None:
        # XLA would take what follows for a constant, and compile for each batch.
        return tensor
    return tf.raw_ops.PlaceholderWithDefault(
        input=tensor, shape=[None, *tensor.shape[1:]]
    )


def _refuse_unrepeatable(forward: Forward) -> None:
    """Refuses random numbers without a seed where a layer runs a second time."""
    operations = tf.compat.v1.get_default_graph().get_operations()
    for position, operation in enumerate(operations):
        unit = forward.log.unit_at(position)
        if unit is None or not unit.rule.runs_again:
            continue
        if Effect.DRAWS in effects(operation):
            raise UnsupportedModelError(
                f"Layer {unit.layer.name!r} ({type(unit.layer).__name__}) draws random "
                f"numbers with {operation.type}, which cannot be repeated. Use "
                "`keras.random` with a `keras.random.SeedGenerator`."
            )


def _enclosing_derivative(
    model: keras.Model, forward: Forward, trace: Trace, alone: Sequence[Any]
) -> Any | None:
    """A layer that takes derivatives through layers inside, which must be one unit.

    Raises:
      UnsupportedModelError: if there is no such layer: the model takes them itself.
    """
    escape = forward.log.escape()
    if escape is None:
        return None
    operation, unit = escape
    for layer in trace.layers_at(NotIndependent("", operation)):
        if not isinstance(layer, keras.Model) and layer not in alone:
            return layer
    raise UnsupportedModelError(
        f"Model {model.name!r} uses what layer {unit.layer.name!r} "
        f"({type(unit.layer).__name__}) computes of its weights outside of that layer's "
        f"call (in {operation.name!r}), as the derivative by an input in a gradient "
        f"penalty does. The gradient of the weights would lack that part. Put the layer "
        f"and what takes the derivative into the `call` of one `keras.layers.Layer`, "
        f"which then runs on each example by itself."
    )


def refuse_state(
    model: keras.Model,
    forward: Forward,
    trace: Trace,
    generators: Sequence[keras.random.SeedGenerator],
) -> None:
    """Refuses writes to variables, and code of the host, since the trace began.

    Raises:
      UnsupportedModelError: with the operation and its layer.
    """
    allowed = set()
    for generator in generators:
        state = tensorflow_variable(generator.state)
        for part in (state, *getattr(state, "values", ())):
            allowed.add(id(part.handle))
    captured = forward.log.captured_handles()

    def is_seed(handle: Any) -> bool:
        return id(captured.get(id(handle), handle)) in allowed

    metrics = metric_handles(model)

    def is_metric(handle: Any) -> bool:
        return id(captured.get(id(handle), handle)) in metrics

    try:
        trace.refuse_state(is_seed, is_metric)
    except NotIndependent as error:
        raise UnsupportedModelError(
            f"The training step of model {model.name!r}{_where(trace, error)} "
            f"{error.reason} (in {error.operation.name!r}). {_STATE_ADVICE}"
        ) from error


def refuse_shared_reads(model: keras.Model, trace: Trace) -> None:
    """Refuses what ran for each example by itself but saw others.

    Raises:
      UnsupportedModelError: with the layer.
    """
    try:
        trace.check_isolation()
    except NotIndependent as error:
        raise _refusal(model, trace, error) from error


def _where(trace: Trace, error: NotIndependent) -> str:
    layers = trace.layers_at(error)
    if not layers:
        return ""
    return f", in layer {layers[0].name!r} ({type(layers[0]).__name__}),"


def _advice(trace: Trace, error: NotIndependent, usual: str) -> str:
    """What to do: preprocessing has a place of its own."""
    layers = trace.layers_at(error)
    return CUT_ADVICE if layers and isinstance(layers[0], PREPROCESSING) else usual


def _refusal(
    model: keras.Model, trace: Trace, error: NotIndependent
) -> UnsupportedModelError:
    op = error.operation
    where = _where(trace, error).rstrip(",")
    return UnsupportedModelError(
        f"Model {model.name!r}{where}: Operation {op.name!r} ({op.type}) {error.reason}. "
        f"{_advice(trace, error, ADVICE)}"
    )
