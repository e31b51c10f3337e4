"""What a trace of the model proves about batch dimensions and side effects.

The model is traced once, without being run, for a batch size that occurs nowhere else
in its shapes. Wherever that number is a tensor's first dimension, the dimension is
the batch: a layer that is called on something else (position numbers, a mask shared by
all examples) is then told apart with certainty, also if the real batch happens to have
the same size.
"""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.graphs.walking import Scope, called, has_node
from tf_bandmf.keras.clipping.forward.passes import Forward, run_forward
from tf_bandmf.keras.clipping.forward.tapped_layers import Unit, find_units
from tf_bandmf.keras.clipping.forward.taps import CallShape, Spread
from tf_bandmf.keras.clipping.independence.state import is_random
from tf_bandmf.keras.clipping.independence.trace import Trace
from tf_bandmf.keras.clipping.losses.alone_and_together import check_loss
from tf_bandmf.keras.clipping.proof.judge import layers_alone
from tf_bandmf.keras.clipping.proof.refusals import advice_on_preprocessing, prove
from tf_bandmf.keras.clipping.rules import LayerCall
from tf_bandmf.keras.clipping.tensors import batches
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.clipping.tensors.variables import trainable_variables
from tf_bandmf.keras.compat.keras_objects import compile_loss
from tf_bandmf.keras.compat.seeds import used_generators

_BATCH_SIZES = (1009, 1013, 1019, 1021, 1031, 1033, 1039, 1049, 1051, 1061)
_ELEMENTWISE = {"Add", "AddV2", "Sub", "Mul"}
_PASS_THROUGH = {"Identity", "Cast"}
_KNOWN: weakref.WeakKeyDictionary[Any, dict[Any, Structure]] = (
    weakref.WeakKeyDictionary()
)


@dataclasses.dataclass(frozen=True)
class Structure:
    """What a trace of a model proved.

    Attributes:
      shapes: for each tapped call, by position, what it gets per example.
      alone: layers that must be executed for each example by itself.
    """

    shapes: Mapping[int, CallShape]
    alone: tuple[Any, ...]


def structure_of(
    model: keras.Model,
    variables: Sequence[Any],
    data: Any,
    alone: Sequence[Any] = (),
) -> Structure:
    """Traces a model and returns what its tapped calls get per example.

    Args:
      model: a built and compiled model.
      variables: its trainable variables.
      data: (x, y, sample_weight), tensors [B, ...].
      alone: layers that are known to need execution for each example by itself.

    Returns:
      The structure of the model's calls.

    Raises:
      UnsupportedModelError: if the model has a structure that is not supported.
    """
    key = (
        tuple(id(variable) for variable in variables),
        batches.specs_of(data),
        id(compile_loss(model)),
        tuple(id(layer) for layer in alone),
    )
    known = _KNOWN.setdefault(model, {})
    if key not in known:
        known[key] = _trace(model, variables, data, list(alone))
    return known[key]


def layers_executed_alone(model: keras.Model) -> tuple[Any, ...]:
    """Layers that traces of a model executed for each example by itself, each once."""
    known = _KNOWN.get(model, {}).values()
    layers = {id(layer): layer for found in known for layer in found.alone}
    return tuple(layers.values())


def _trace(
    model: keras.Model, variables: Sequence[Any], data: Any, alone: list[Any]
) -> Structure:
    taken = {d for variable in variables for d in variable.shape}
    for leaf in batches.tensor_leaves(data):
        taken.update(leaf.shape[1:])
    size = next(candidate for candidate in _BATCH_SIZES if candidate not in taken)
    specs = list(batches.specs_of(data, size))
    alone, is_shown = layers_alone(model, data[0], alone)
    found: dict[int, CallShape] = {}
    checks = [functools.partial(check_loss, model)]

    def probe(tensors: list[tf.Tensor]) -> tf.Tensor:
        placeholders = batches.with_leaves(data, tensors)
        units = find_units(model, variables, alone)
        trace = Trace(tensors)
        with used_generators() as generators:
            # Once, however often the model is traced.
            check = checks.pop() if checks else None
            forward = run_forward(
                model, variables, units, placeholders, None, trace, check
            )
        trace.done()
        found.clear()
        found.update(_examine(model, variables, forward, placeholders, size))
        more = prove(model, forward, trace, generators, alone)
        if more is None and not is_shown and model not in alone:
            more = model
        if more is not None:
            raise _RunAlone(more)
        return forward.losses

    while True:
        try:
            # A graph of its own each time: Keras' layers may keep tensors of the last.
            tf.function(probe, autograph=False).get_concrete_function(specs)
            return Structure(dict(found), tuple(alone))
        except _RunAlone as request:
            alone.append(request.layer)
        except UnsupportedModelError:
            raise
        except (ValueError, tf.errors.OpError) as error:  # of shapes
            if str(size) not in str(error):
                raise
            # It is not a size of the user's.
            raise UnsupportedModelError(
                f"Model {model.name!r} does not run on a batch of {size} examples, on "
                f"which it is traced to find the batch dimension. A model must accept any "
                f"batch size: do not write one into a reshape or a layer; in a reshape "
                f"use ops.shape(x)[0]. ({type(error).__name__}: {error})"
            ) from error


class _RunAlone(Exception):
    """Asks for another trace, in which a layer is executed alone."""

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        self.layer = layer


def _examine(
    model: keras.Model,
    variables: Sequence[Any],
    forward: Forward,
    data: Any,
    size: int,
) -> dict[int, CallShape]:
    found = {id(variable) for variable in trainable_variables(model)}
    if found != {id(variable) for variable in variables}:
        raise UnsupportedModelError(
            f"Model {model.name!r} created weights in its first call. Call it once on "
            "data before training, so that all weights are known."
        )
    graph = tf.compat.v1.get_default_graph()
    operations = graph.get_operations()
    for leaf in batches.tensor_leaves(forward.y_pred):
        if not leaf.shape.rank or leaf.shape[0] != size:
            raise UnsupportedModelError(
                f"Model {model.name!r} returns a tensor of shape {leaf.shape} for a "
                f"batch of {size}: its first dimension is not the batch."
                f"{advice_on_preprocessing(model)}"
            )
    _refuse_unrepeatable(forward, operations)
    scope = Scope({id(tensor): True for tensor in batches.tensor_leaves(data[0])})
    shapes = {}
    for position, (unit, call) in enumerate(forward.recorder.calls):
        shapes[position] = _call_shape(unit, call, size, scope)
    return shapes


def _call_shape(unit: Unit, call: LayerCall, size: int, scope: Scope) -> CallShape:
    name = f"Layer {call.layer.name!r} ({type(call.layer).__name__})"
    batched = []
    for leaf in batches.tensor_leaves((call.args, call.kwargs)):
        is_batched = bool(leaf.shape.rank) and leaf.shape[0] == size
        if not is_batched and scope.depends(leaf):
            raise UnsupportedModelError(
                f"{name} is called on a tensor of shape {leaf.shape} that depends on "
                "the data but has no batch dimension first. Each example must stay in "
                "its own row: keep the batch as the first dimension, and in a "
                "reshape name it with `ops.shape(x)[0]` instead of -1."
            )
        batched.append(is_batched)
    taps_batched = [t.shape.rank and t.shape[0] == size for t in call.taps]
    spread = Spread.NONE
    if not all(taps_batched) or not any(batched):
        spread = _spread(call, size) if not any(batched) else Spread.NONE
        if not unit.rule.spreads or spread is Spread.NONE:
            raise UnsupportedModelError(
                f"{name} is called on, or returns, tensors without a batch dimension, "
                f"so the gradients of single examples cannot be told apart. Repeat "
                "its input for every example before the call, as with "
                "`ops.broadcast_to(positions, (ops.shape(x)[0], length))`."
            )
    elif unit.rule.batched_input_only and not batched[0]:
        raise UnsupportedModelError(
            f"{name} is called on a tensor without a batch dimension. Give its input "
            "one."
        )
    return CallShape(call.layer, tuple(batched), spread)


def _spread(call: LayerCall, size: int) -> Spread:
    """Whether an output shared by all examples is only combined with batched tensors.

    Then repeating it for every example changes no value, and its gradient becomes
    one per example.
    """
    (tap,) = call.taps if len(call.taps) == 1 else (None,)
    if tap is None or tap.shape.rank is None:
        return Spread.NONE
    if tap.shape[0] == 1:
        mode, rank = Spread.REPEAT, tap.shape.rank
    else:
        mode, rank = Spread.NEW_AXIS, tap.shape.rank + 1
    pending, used = [tap], False
    while pending:
        tensor = pending.pop()
        for consumer in tensor.consumers():
            if consumer.type in _PASS_THROUGH:
                pending.extend(consumer.outputs)
            elif consumer.type in _ELEMENTWISE:
                others = [t for t in consumer.inputs if t is not tensor]
                for other in others:
                    if other.shape.rank != rank or other.shape[0] != size:
                        return Spread.NONE
                used = bool(others)
                if not others:
                    return Spread.NONE
            else:
                return Spread.NONE
    return mode if used else Spread.NONE


def _refuse_unrepeatable(forward: Forward, operations: Sequence[Any]) -> None:
    """Refuses random numbers without a seed where a layer runs a second time."""
    for position, operation in enumerate(operations):
        unit = forward.log.unit_at(position)
        if unit is None or not unit.rule.runs_again:
            continue
        kind = _drawn_with(operation)
        if kind is not None:
            raise UnsupportedModelError(
                f"Layer {unit.layer.name!r} ({type(unit.layer).__name__}) draws random "
                f"numbers with {kind}, which cannot be repeated. Use "
                "`keras.random` with a `keras.random.SeedGenerator`."
            )


def _drawn_with(operation: Any) -> str | None:
    """What draws without a seed: an operation, or one in functions that it calls."""
    found: list[str] = []

    def draws(node: Any) -> bool:
        if is_random(node.op) or node.op.startswith("Rng"):
            found.append(node.op)
        return bool(found)

    if not draws(operation.node_def):
        for name, _ in called(operation):
            has_node(operation.graph, name, draws)
    return found[0] if found else None
