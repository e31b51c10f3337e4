"""Chooses lazy tables, whose noise is drawn when rows are read, and releases them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import keras

from tf_bandmf.accounting.checks import whole_number
from tf_bandmf.keras.clipping import UnsupportedModelError, is_lookup_table
from tf_bandmf.keras.compat.keras_objects import (
    all_layers,
    is_distributed,
    own_trainable_variables,
)
from tf_bandmf.keras.model.callbacks import each_callback
from tf_bandmf.keras.run.tables import update_of
from tf_bandmf.noise.lazy import noise_system, row_system

DENSE, LAZY = "dense", "lazy"


@dataclasses.dataclass
class StepSettings:
    """The settings of a model's private step; the arguments of `make_private`.

    Attributes:
      microbatch_size: number of examples whose gradients are held in memory together;
        None for the whole batch.
      tables: the tables that get their noise when their rows are read: "dense" for none,
        "lazy" for all, or names of layers.
      release_every: number of steps after which lazy tables are also released; None for
        only at the ends of epochs.
      alone: names of layers that may run on batches of one, even if that changes their
        results.

    Raises:
      ValueError: if a number is not a positive integer, or names are not a list of names.
    """

    microbatch_size: int | None = None
    tables: str | Sequence[str] = DENSE
    release_every: int | None = None
    alone: Collection[str] = ()

    def __post_init__(self) -> None:
        for name in ("microbatch_size", "release_every"):
            if getattr(self, name) is not None:
                number = whole_number(name, getattr(self, name), most=2**31 - 1)
                setattr(self, name, number)
        if self.tables not in (DENSE, LAZY):
            self.tables = _names("tables, if not 'dense' or 'lazy',", self.tables)
        self.alone = _names("alone", self.alone)


def _names(name: str, given: Any) -> list[str]:
    is_list = isinstance(given, Collection) and not isinstance(given, str)
    if not is_list or not all(isinstance(each, str) for each in given):
        raise ValueError(f"{name} must be a list of names of layers, found {given!r}.")
    return list(given)


def lazy_layers(model: Any, optimizer: Any) -> list[Any]:
    """The layers whose tables get their noise when rows are read.

    Args:
      model: private and built; its settings name the tables.
      optimizer: the model's `PrivateOptimizer`.

    Raises:
      UnsupportedModelError: if a requested table does not support this.
    """
    setting = model._settings.tables
    if setting == DENSE:
        return []
    layers = [
        layer
        for layer in all_layers(model)
        if isinstance(layer, keras.layers.Embedding) and layer.trainable_variables
    ]
    names = {layer.name for layer in layers}
    chosen = names if setting == LAZY else set(setting)
    if not chosen or not chosen <= names:
        raise UnsupportedModelError(
            f"make_private got tables={setting!r}, found trainable Embedding layers "
            f"{', '.join(sorted(names)) or '(none)'}. Name some of these, or give "
            f"tables='dense'."
        )
    layers = [layer for layer in layers if layer.name in chosen]
    for layer in layers:
        reason = _reason(model, optimizer) or _reason_of(model, layer)
        if reason is not None:
            raise UnsupportedModelError(
                f"The noise of table {layer.name!r} cannot be drawn when rows are read: "
                f"{reason}. Change that, give make_private tables='dense', or name the "
                f"other tables in make_private(tables=[...])."
            )
    # In the order of the weights, as the sums of a step are.
    place = {id(variable): i for i, variable in enumerate(model.trainable_variables)}
    return sorted(layers, key=lambda layer: place[id(layer.trainable_variables[0])])


def _reason(model: Any, optimizer: Any) -> str | None:
    """The reason why no table of the model supports lazy noise, or None."""
    if model._settings.microbatch_size is not None:
        return "microbatch_size processes a batch in groups"
    if model.jit_compile:
        return (
            "the model is compiled with jit_compile=True (as 'auto' means on a GPU if "
            "make_private is called later)"
        )
    if optimizer.run.strategy.num_replicas_in_sync > 1 or is_distributed(model):
        return "the model is on several replicas"
    if optimizer.clipping.scaling is not None:
        return "scaling of coordinates reads all of them in each step"
    inner, plan = optimizer.inner_optimizer, optimizer.plan
    if type(inner) is not keras.optimizers.SGD:
        return (
            f"{type(inner).__name__} is not linear in its gradients, so the effect of "
            f"several steps of noise on a row is known only by taking them. "
            f"keras.optimizers.SGD works, with any schedule, momentum and weight decay"
        )
    for name in ("clipnorm", "clipvalue", "global_clipnorm"):
        if getattr(inner, name, None) is not None:
            return f"{name} of SGD is not linear in the gradients"
    if inner.use_ema:
        return "averages of weights (use_ema) change at every step"
    try:
        noise = noise_system(plan.strategy.matrix)
        row_system(noise, update_of(inner, True), 1.0, 1.0)
    except ValueError as error:
        return str(error).rstrip(".")
    return None


def _reason_of(model: Any, layer: Any) -> str | None:
    """The reason why the table of one layer does not support lazy noise, or None."""
    variables = layer.trainable_variables
    if not is_lookup_table(layer, variables):
        return "it does more than look rows up (adapters, quantization, a custom call)"
    (table,) = variables
    if table.regularizer is not None:
        return "it has a regularizer, which changes all rows at each step: use weight_decay"
    if table.constraint is not None:
        return "it has a constraint, which is not linear"
    if keras.backend.standardize_dtype(table.dtype) != "float32":
        return f"it is of dtype {table.dtype}"
    if not any(table is variable for variable in model.trainable_variables):
        return "it is not trainable"
    owners = [
        other
        for other in all_layers(model)
        if any(table is variable for variable in own_trainable_variables(other))
    ]
    if owners != [layer]:
        return "other layers have the same variable (call one layer several times)"
    return None


def with_releases(callbacks: Any, model: Any) -> Any:
    """The callbacks of `fit`, with one before them that releases tables after epochs."""
    releases = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: model.release()
    )
    return [releases, *each_callback(callbacks)]
