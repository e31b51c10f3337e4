"""Finds out which layers mix examples and must run on one example at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.forward.tapped_layers import Unit, find_units
from tf_bandmf.keras.clipping.independence.places import ROWS, CallShape, Mixes
from tf_bandmf.keras.clipping.independence.walk import Walk
from tf_bandmf.keras.clipping.tensors import batches
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError

# Pairs of batch sizes to try. If a model contains one of the first two numbers by
# chance, the second pair is tried.
_SIZES = ((179, 181), (191, 193))


class Structure(NamedTuple):
    """The layers that mix examples, and the calls from which gradients are computed.

    Attributes:
      alone: layers that must run on one example at a time, because they mix examples or
        cannot be analyzed.
      units: the layers whose calls must be recorded for per-example gradients.
      calls: for each recorded call, in order, which arguments are batched.
      outputs: the model's outputs, as symbolic tensors; None if the whole model must
        run on one example at a time.
    """

    alone: tuple[Any, ...]
    units: Sequence[Unit]
    calls: tuple[CallShape, ...]
    outputs: Any = None


def structure_of(
    model: keras.Model,
    x: Any,
    variables: Sequence[Any] = (),
    training: bool = True,
) -> Structure:
    """Finds layers that must run on one example at a time, and calls to record.

    Args:
      model: a built model.
      x: its inputs, nested tensors [B, ...]; only their shapes and dtypes matter.
      variables: the trainable variables, for a model in training.
      training: True if the model is trained, False if it is evaluated.

    Raises:
      UnsupportedModelError: if code outside of layers mixes examples of a batch, or if
        the gradients of a layer cannot be computed for each example.
    """
    for sizes in _SIZES:
        try:
            return _tried(model, x, variables, training, sizes)
        except Mixes as error:
            mixed = error
    layer = mixed.layer or model
    where = f"layer {layer.name!r} ({type(layer).__name__})"
    if layer is model:
        where = "its own `call` or a `keras.ops` node"
    raise UnsupportedModelError(
        f"Model {model.name!r}, in {where}: {mixed}. {mixed.advice}"
    ) from mixed


def _tried(
    model: keras.Model,
    x: Any,
    variables: Sequence[Any],
    training: bool,
    sizes: Sequence[int],
) -> Structure:
    """Finds the structure of a model by running it symbolically with two batch sizes.

    Raises:
      Mixes: if code outside of layers mixes examples.
    """
    alone: list[Any] = []
    while True:
        units = find_units(model, variables, alone)
        if model in alone:
            of_inputs = tuple(map(tf.is_tensor, keras.tree.flatten(x)))
            return Structure(tuple(alone), units, (CallShape(model, of_inputs),))
        walks: list[Walk] = []
        for size in sizes:
            walks.append(Walk(size, alone, units, walks[0].log if walks else None))
            outputs = _run(walks[-1], model, x, training)
            if walks[-1].alone != alone:
                break
        else:
            # The logs can differ here only if custom code caught the `Mixes` error.
            if walks[0].log != walks[1].log:
                raise Mixes("an operation depends on the batch size")
            return Structure(tuple(alone), units, tuple(walks[1].calls), outputs)
        alone = walks[-1].alone


def _run(walk: Walk, model: keras.Model, x: Any, training: bool) -> Any:
    """Runs a model on symbolic tensors, and checks its outputs.

    Returns:
      The outputs; None if the whole model must run on one example at a time.

    Raises:
      Mixes: if code outside of layers mixes examples.
    """
    try:
        inputs = batches.map_tensors(lambda t: walk.tensor(t.shape, t.dtype.name), x)
        outputs = walk.run(model, inputs, training)
        places = [walk.place(leaf) for leaf in keras.tree.flatten(outputs)]
    except Mixes:
        raise
    except Exception:
        # A model that cannot run at all fails later, when TensorFlow traces the model.
        walk.alone = [model]
        return None
    if model not in walk.alone and any(place != ROWS for place in places):
        raise Mixes("the first axis of a returned tensor is not the batch axis")
    return outputs
