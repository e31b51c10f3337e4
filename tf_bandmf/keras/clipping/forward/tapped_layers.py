"""Finds the layers whose calls are tapped (recorded).

A unit is the smallest layer whose call accounts for all uses of its weights.
Containers are opened. A layer that owns weights is a unit, with all layers inside it,
unless a rule is known for its own weights alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import keras

from tf_bandmf.keras.clipping.rules import (
    PerExampleRule,
    Rule,
    rule_for,
)
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.compat.keras_objects import all_layers, own_trainable_variables

# Layers that run inner layers in a loop, where a tap would see single time steps.
_CLOSED = (keras.layers.RNN, keras.layers.TimeDistributed)


def _is_closed(layer: Any) -> bool:
    """Returns whether a layer is tapped as a whole, together with its inner layers.

    If `TimeDistributed` is built for a known number of steps, it calls its layer once
    per step. With a table inside, it is opened: tapped as a whole, it would need
    gradients of all table rows for each example.
    """
    if type(layer) is not keras.layers.TimeDistributed:
        return isinstance(layer, _CLOSED)
    shape = (layer.get_build_config() or {}).get("input_shape")
    is_unrolled = shape is not None and shape[1] is not None
    has_table = any(
        isinstance(one, keras.layers.Embedding) for one in all_layers(layer)
    )
    return not (is_unrolled and has_table)


@dataclasses.dataclass(frozen=True)
class Unit:
    """A layer to be tapped.

    Attributes:
      layer: the layer.
      variables: all trainable variables of the layer and its inner layers; only the
        layer's own variables if the rule opens the layer.
      rule: the rule for its per-example gradients.
    """

    layer: Any
    variables: tuple[Any, ...]
    rule: Rule


def find_units(
    model: keras.Model, variables: Sequence[Any], alone: Collection[Any] = ()
) -> list[Unit]:
    """Finds the layers whose calls must be tapped.

    Args:
      model: a built model.
      variables: the trainable variables of the model.
      alone: layers that are executed on each example alone.

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
                    f"Model {model.name!r} owns the weight {weights[0].path!r} itself, "
                    "so that no layer's call accounts for its gradient. Move the "
                    "weight into a separate layer."
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
