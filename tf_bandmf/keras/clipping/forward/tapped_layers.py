"""Finds the layers whose calls must be recorded to get per-example gradients.

A `Unit` is a layer whose calls are recorded. A layer that owns weights is a unit, and
its inner layers belong to it. If the layer's rule covers only the weights that the
layer itself owns (`Rule.opens`), the inner layers are searched for further units.
Containers without weights of their own are searched in the same way, unless they run
their layers in a loop.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import keras

from tf_bandmf.keras.clipping.rules import (
    PerExampleRule,
    Rule,
    rule_for,
)
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.compat.keras_objects import all_layers, own_trainable_variables

# Layers that run inner layers in a loop: a call of an inner layer is one time step.
_CLOSED = (keras.layers.RNN, keras.layers.TimeDistributed)


def _is_closed(layer: Any) -> bool:
    """Returns whether only a layer's own calls are recorded, not those of inner layers.

    If `TimeDistributed` is built for a known number of steps, it calls its inner layer
    once per step, so these calls can be recorded. They are recorded only if the inner
    layer contains an `Embedding`. Otherwise, a gradient of the whole embedding table
    would be computed for each example.
    """
    if type(layer) is not keras.layers.TimeDistributed:
        return isinstance(layer, _CLOSED)
    shape = (layer.get_build_config() or {}).get("input_shape")
    is_unrolled = shape is not None and shape[1] is not None
    has_table = any(
        isinstance(one, keras.layers.Embedding) for one in all_layers(layer)
    )
    return not (is_unrolled and has_table)


class Unit(NamedTuple):
    """A layer whose calls are recorded.

    Attributes:
      layer: the layer.
      variables: all trainable variables of the layer and its inner layers; or only the
        layer's own variables, if the calls of inner layers are also recorded.
      rule: the rule for its per-example gradients.
    """

    layer: Any
    variables: tuple[Any, ...]
    rule: Rule


def find_units(
    model: keras.Model, variables: Sequence[Any], alone: Collection[Any] = ()
) -> list[Unit]:
    """Finds the layers whose calls must be recorded.

    Args:
      model: a built model.
      variables: the trainable variables of the model.
      alone: layers that are executed separately for each example.

    Returns:
      Units that together cover all variables.

    Raises:
      UnsupportedModelError: if the model itself owns a variable.
    """
    wanted = {id(variable) for variable in variables}
    units: list[Unit] = []
    seen: set[int] = set()

    def visit(layer: Any) -> None:
        if id(layer) in seen:
            return
        seen.add(id(layer))
        # `trainable_variables` would miss the trainable parts (adapters) of frozen
        # layers.
        inside = tuple(v for v in layer.variables if id(v) in wanted)
        if any(layer is other for other in alone):
            units.append(Unit(layer, inside, PerExampleRule(alone=True)))
            return
        if not inside and not alone:
            return
        weights = [v for v in own_trainable_variables(layer) if id(v) in wanted]
        if layer is model:
            if weights:
                raise UnsupportedModelError(
                    f"Weight {weights[0].path!r} belongs to model {model.name!r} itself, "
                    "not to a layer, so its gradient cannot be clipped per example. Move "
                    "the weight into a separate layer."
                )
        elif inside and (weights or _is_closed(layer)):
            rule = rule_for(layer, inside, weights)
            units.append(Unit(layer, tuple(weights) if rule.opens else inside, rule))
            if not rule.opens:
                return
        for child in all_layers(layer, include_self=False, recursive=False):
            visit(child)

    visit(model)
    return units
