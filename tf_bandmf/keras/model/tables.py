"""Chooses the tables whose noise is drawn when rows are read, and releases them."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_bandmf.keras.clipping import UnsupportedModelError, is_lookup_table
from tf_bandmf.keras.compat.averages import each_callback
from tf_bandmf.keras.compat.keras_objects import all_layers, own_trainable_variables
from tf_bandmf.keras.run.tables import entries_of, refusal

DENSE, LAZY, AUTO = "dense", "lazy", "auto"
# What "auto" compares, in processor nanoseconds on an x86 machine with two cores: of a
# number of a table in a dense step; of one that a lazy step looks up, per entry of its
# state; of one entry of a number's state at a release; and what a lazy step takes beside.
# Measured (docs/lazy-noise.md) with DP-SGD and λ-CGD: the first (8 and 12)
# and the third (11) are slopes between 10^4 and 10^6 rows of 16 columns; the second is what
# a private step takes more than one by hand with 4096 x 20 ids (13 and 15); the fourth is
# what is left of a step of 500 x 4 ids. So 16 columns pay from 7,000 to 9,000 rows on.
_DENSE, _LOOKED_UP, _RELEASED, _FIXED = 10.0, 13.0, 11.0, 6e5


def checked(tables: Any) -> str | tuple[str, ...]:
    """The argument of `make_private`.

    Raises:
      ValueError: if it is none of the words, nor a sequence of names.
    """
    if isinstance(tables, str):
        if tables in (DENSE, LAZY, AUTO):
            return tables
    elif isinstance(tables, Sequence) and tables:
        if all(isinstance(name, str) for name in tables):
            return tuple(tables)
    raise ValueError(
        f"tables must be 'dense', 'lazy', 'auto' or names of Embedding layers, found "
        f"{tables!r}."
    )


def lazy_layers(model: Any, optimizer: Any) -> list[Any]:
    """The layers whose tables get their noise when rows are read.

    Args:
      model: private and built, with its setting.
      optimizer: private.

    Raises:
      UnsupportedModelError: if a requested table does not support this.
    """
    setting = model._tables
    if setting == DENSE:
        return []
    found = [layer for layer in all_layers(model) if _is_table(layer)]
    if not isinstance(setting, str):
        known = {layer.name: layer for layer in found}
        missing = [name for name in setting if name not in known]
        if missing:
            raise UnsupportedModelError(
                f"tables names {', '.join(missing)}, found trainable Embedding layers "
                f"{', '.join(known) or '(none)'}."
            )
        found = [known[name] for name in setting]
    reason = _reason(model, optimizer)
    if reason is not None:
        if setting == AUTO:
            return []
        raise UnsupportedModelError(
            f"Noise of tables cannot be drawn when rows are read: {reason}. Change that, "
            f"or give make_private tables='dense'."
        )
    reasons = {layer.name: _reason_of(model, layer) for layer in found}
    if setting == AUTO:
        found = [
            layer
            for layer in found
            if reasons[layer.name] is None and type(layer) is keras.layers.Embedding
        ]
        costs = {layer.name: costs_of(model, optimizer, layer) for layer in found}
        chosen = [layer for layer in found if np.diff(costs[layer.name]) < 0.0]
        if chosen and not model._training.is_quiet:
            names = ", ".join(
                "{} (about {:.1f} ms a step, dense {:.1f})".format(
                    layer.name, *reversed(costs[layer.name])
                )
                for layer in chosen
            )
            print(
                f"tf_bandmf: the noise of tables {names} is drawn when their rows are "
                f"read (tables='dense' draws all of it in each step).",
                file=sys.stderr,
                flush=True,
            )
        return chosen
    if not found:
        raise UnsupportedModelError(
            "tables='lazy' is for models with trainable Embedding layers: this one has "
            "none. Give make_private tables='dense'."
        )
    for name, why in reasons.items():
        if why is not None:
            raise UnsupportedModelError(
                f"The noise of table {name!r} cannot be drawn when rows are read: {why}. "
                f"Change that, or name the other tables in make_private(tables=[...])."
            )
    return found


def costs_of(model: Any, optimizer: Any, layer: Any) -> tuple[float, float]:
    """About what a table adds to a step in milliseconds: dense, and lazy with releases.

    It assumes that an example looks up as many rows as it has integers.

    Args:
      model: private and built.
      optimizer: private.
      layer: an `Embedding`.
    """
    plan = optimizer.plan
    rows, columns = layer.input_dim, layer.output_dim
    batch = float(plan.expected_batch_size or 1.0)
    ids = sum(
        math.prod(size or 1 for size in tensor.shape[1:])
        for tensor in tf.nest.flatten(getattr(model, "inputs", None) or ())
        if "int" in keras.backend.standardize_dtype(tensor.dtype)
    )
    looked_up = min(batch * max(ids, 1), rows) * columns
    examples = getattr(plan.participation, "num_examples", None)
    epoch = plan.num_steps if examples is None else max(1.0, examples / batch)
    between = min(model._release_every or epoch, epoch)
    entries = entries_of(optimizer.inner_optimizer, plan)
    lazy = _FIXED + _LOOKED_UP * entries * looked_up
    lazy += _RELEASED * entries * rows * columns / between
    return 1e-6 * _DENSE * rows * columns, 1e-6 * lazy


def _is_table(layer: Any) -> bool:
    return isinstance(layer, keras.layers.Embedding) and bool(layer.trainable_variables)


def _reason(model: Any, optimizer: Any) -> str | None:
    """Why no table of the model supports lazy noise."""
    if model._microbatch_size is not None:
        return "microbatch_size takes a batch in groups"
    if model.jit_compile:
        return (
            "the model is compiled with jit_compile=True (as 'auto' means on a GPU if "
            "make_private is called later)"
        )
    if optimizer.run.strategy.num_replicas_in_sync > 1 or model._is_distributed:
        return "the model is on several replicas"
    if optimizer.clipping.scaling is not None:
        return "scaling of coordinates reads all of them in each step"
    return refusal(optimizer.inner_optimizer, optimizer.plan)


def _reason_of(model: Any, layer: Any) -> str | None:
    """Why the table of a layer does not support lazy noise."""
    variables = layer.trainable_variables
    if not is_lookup_table(layer, variables):
        return (
            "it does more than look rows up (adapters, quantization, a call of its own)"
        )
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
        if any(table is own for own in own_trainable_variables(other))
    ]
    if owners != [layer]:
        return "other layers have the same variable (call one layer several times)"
    return None


class Releases(keras.callbacks.Callback):
    """Releases the tables of a private model at the ends of epochs, before other callbacks.

    Args:
      every: number of steps after which tables are also released; None for ends of
        epochs only.
    """

    def __init__(self, every: int | None) -> None:
        super().__init__()
        self._every = every

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Releases the tables if it is time."""
        tables = self.model.optimizer.run.tables
        if self._every is not None and tables.steps_behind >= self._every:
            self.model.release()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Releases the tables."""
        self.model.release()


def with_releases(callbacks: Any, every: int | None) -> Any:
    """Callbacks of `fit`, with `Releases` before all others."""
    own = Releases(every)
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks.callbacks.insert(0, own)
        own.set_model(callbacks.model)
        return callbacks
    return [own, *each_callback(callbacks)]
