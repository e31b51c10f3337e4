"""Chooses lazy tables: a row of such a table gets its noise only when it is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras

from tf_bandmf.keras.clipping.rules.embedding import is_lookup_table
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.compat.keras_objects import (
    all_layers,
    is_distributed,
    own_trainable_variables,
    uses_weight_decay,
)
from tf_bandmf.noise.lazy import LinearUpdate, RowSystem, noise_system, row_system
from tf_bandmf.planning.plan import Plan

DENSE, LAZY = "dense", "lazy"


def lazy_layers(model: Any) -> list[Any]:
    """Returns the embedding layers with lazy tables, in the order of the model's weights.

    Args:
      model: a private model, compiled and built; its settings name the tables.

    Raises:
      UnsupportedModelError: if a requested table cannot be lazy.
    """
    setting = model._settings.tables
    if setting == DENSE:
        return []
    layers = {
        id(layer.trainable_variables[0]): layer
        for layer in all_layers(model)
        if isinstance(layer, keras.layers.Embedding) and layer.trainable_variables
    }
    names = {layer.name for layer in layers.values()}
    chosen = names if setting == LAZY else set(setting)
    if not chosen or not chosen <= names:
        raise UnsupportedModelError(
            f"tables={setting!r} does not match the model's trainable Embedding layers: "
            f"{', '.join(sorted(names)) or '(none)'}. Pass names of these layers in "
            f"make_private(model, tables=[...]), or pass tables='dense'."
        )
    # The layers are in the order of the weights, like a step's gradient sums.
    in_order = [layers.get(id(variable)) for variable in model.trainable_variables]
    lazy = [layer for layer in in_order if layer is not None and layer.name in chosen]
    for layer in lazy:
        for reason in _reasons(model, layer, lazy[0]):
            raise UnsupportedModelError(
                f"The table of layer {layer.name!r} cannot be lazy: {reason}. Change "
                f"that, or call make_private(model, tables='dense'), or make_private("
                f"model, tables=[...]) with names of other layers."
            )
    return lazy


def update_of(inner: Any, variable: Any) -> LinearUpdate:
    """Returns the hyperparameters with which SGD updates a variable."""
    decay = inner.weight_decay if uses_weight_decay(inner, variable) else None
    return LinearUpdate(float(inner.momentum), bool(inner.nesterov), float(decay or 0))


def system_of(plan: Plan, inner: Any, variable: Any) -> RowSystem:
    """Returns the linear system by which a step updates a table's row and adds noise.

    Raises:
      ValueError: if the plan's mechanism needs too much memory, or its noise cannot be
        computed by a linear system.
    """
    assert plan.expected_batch_size is not None
    return row_system(
        noise_system(plan.strategy.matrix),
        update_of(inner, variable),
        float(plan.noise_stddev),
        float(plan.expected_batch_size),
    )


def _reasons(model: Any, layer: Any, first: Any) -> Iterator[str]:
    """Yields the reasons why a layer's table cannot be lazy.

    Args:
      model: a private model, compiled and built.
      layer: the layer of the table.
      first: the first layer that was chosen to have a lazy table; all such tables must
        have the same weight decay.
    """
    optimizer = model.optimizer
    inner, table = optimizer.inner_optimizer, layer.trainable_variables[0]
    if model._settings.microbatch_size is not None:
        yield "microbatch_size processes a batch in groups"
    if model.jit_compile:
        yield (
            "the model is compiled with jit_compile=True (which 'auto' selects on a "
            "GPU if make_private is called after compile)"
        )
    if optimizer.run.strategy.num_replicas_in_sync > 1 or is_distributed(model):
        yield "the model is on several replicas"
    if optimizer.clipping.scaling is not None:
        yield "coordinate scaling reads all rows in each step"
    if type(inner) is not keras.optimizers.SGD:
        yield (
            f"{type(inner).__name__} is not linear in its gradients, so noise of "
            f"several steps cannot be added to a row in one update. "
            f"keras.optimizers.SGD works, with any schedule, momentum and weight decay"
        )
    if any((inner.clipnorm, inner.clipvalue, inner.global_clipnorm, inner.use_ema)):
        yield "the optimizer clips noisy gradients or averages weights (not linear)"
    try:
        system_of(optimizer.plan, inner, table)
    except ValueError as error:
        yield str(error).rstrip(".")
    if not is_lookup_table(layer, layer.trainable_variables):
        yield "it does more than look rows up (adapters, quantization, a custom call)"
    if table.regularizer is not None or table.constraint is not None:
        yield "it has a regularizer or a constraint: use weight_decay instead"
    owners = [
        other
        for other in all_layers(model)
        if any(table is variable for variable in own_trainable_variables(other))
    ]
    if owners != [layer]:
        yield "other layers share its variable (call one layer several times instead)"
    if keras.backend.standardize_dtype(table.dtype) != "float32":
        yield f"it is of dtype {table.dtype}"
    if update_of(inner, table) != update_of(inner, first.trainable_variables[0]):
        yield f"its weight decay differs from that of table {first.name!r}"
