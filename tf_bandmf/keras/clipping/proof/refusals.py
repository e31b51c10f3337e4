"""Whether a recorded forward pass keeps examples apart, and what to do if it may not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from tf_bandmf.graphs.functions import made_once
from tf_bandmf.keras.clipping.forward.passes import Forward
from tf_bandmf.keras.clipping.independence.state import NotIndependent
from tf_bandmf.keras.clipping.independence.trace import Trace, is_container
from tf_bandmf.keras.clipping.proof.judge import ADVICE
from tf_bandmf.keras.clipping.proof.metrics import metric_handles
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.clipping.tensors.variables import tensorflow_variable
from tf_bandmf.keras.compat.keras_objects import all_layers

# What makes numbers of raw data: its place is before the step.
PREPROCESSING = (
    keras.layers.CategoryEncoding,
    keras.layers.Discretization,
    keras.layers.HashedCrossing,
    keras.layers.Hashing,
    keras.layers.IntegerLookup,
    keras.layers.Normalization,
    keras.layers.Rescaling,
    keras.layers.StringLookup,
    keras.layers.TextVectorization,
)
_CUT_ADVICE = (
    "It is preprocessing, whose place is before the step: encode, core = "
    "tf_bandmf.keras.split_preprocessing(model), before make_private; make core private, "
    "compile and train it, on plan.batches(x, y, map=encode); model has the trained "
    "weights then."
)
_STATE_ADVICE = (
    "State computed from data would be released with the model without noise, or reach "
    "the next step past clipping. Remove it or freeze its layer."
)


@made_once()
def prove(
    model: keras.Model,
    forward: Forward,
    trace: Trace,
    generators: Sequence[keras.random.SeedGenerator],
    alone: Sequence[Any],
) -> Any | None:
    """Refuses what a traced forward pass shows that a model may not do.

    Args:
      model: the model.
      forward: its recorded forward pass and losses.
      trace: what was noted while it was recorded.
      generators: the generators that were drawn from.
      alone: layers that were executed for each example by itself.

    Returns:
      None; or a layer that must be executed for each example by itself.

    Raises:
      UnsupportedModelError: with the operation and its layer.
    """
    refuse_state(model, forward, trace, generators)
    layer = _enclosing_derivative(model, forward, trace, alone)
    if layer is not None:
        return layer
    refuse_shared_reads(model, trace)
    return None


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
        if not (is_container(layer) or any(layer is other for other in alone)):
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
    return _CUT_ADVICE if layers and isinstance(layers[0], PREPROCESSING) else usual


def advice_on_preprocessing(model: keras.Model) -> str:
    """What to do where a layer of preprocessing may have lost the batch; or nothing."""
    for layer in all_layers(model):
        if isinstance(layer, PREPROCESSING):
            return f" Layer {layer.name!r} may have lost it. {_CUT_ADVICE}"
    return ""


def _refusal(
    model: keras.Model, trace: Trace, error: NotIndependent
) -> UnsupportedModelError:
    op = error.operation
    where = _where(trace, error).rstrip(",")
    return UnsupportedModelError(
        f"Model {model.name!r}{where}: Operation {op.name!r} ({op.type}) {error.reason}. "
        f"{_advice(trace, error, ADVICE)}"
    )
