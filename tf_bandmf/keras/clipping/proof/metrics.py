"""Metrics see data without noise: they write only their own state, and nothing reads it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import keras

from tf_bandmf.keras.clipping.proof.variable_uses import (
    VariableUse,
    each_variable_use,
    no_host_code,
)
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.clipping.tensors.variables import VariableIndex
from tf_bandmf.keras.compat.keras_objects import given_metrics, tensorflow_value


@contextlib.contextmanager
def metrics_change_no_weights(model: keras.Model) -> Iterator[None]:
    """Refuses metrics that, when they are updated in the body, change what is not theirs.

    Args:
      model: the model whose metrics are updated.

    Raises:
      UnsupportedModelError: if one does, with the weight or the operation.
    """
    weights = [v for v in model.weights if "seed_generator" not in v.path]
    index = VariableIndex(weights)
    own: set[int] = set()

    def is_own(handle: Any) -> bool:
        if id(handle) not in own:
            own.update(metric_handles(model))  # the body may make some
        return id(handle) in own

    def check(use: VariableUse) -> None:
        weight = index.owner(use.handle)
        is_refused = use.assigns if weight is None else use.may_write
        if not is_refused or is_own(use.handle):
            return
        if weight is not None:
            raise UnsupportedModelError(
                f"A metric of model {model.name!r} changes the weight {weight.path!r}: it "
                "would carry training data past clipping and noise into the model. Keep "
                "the state of a metric in variables of its own."
            )
        raise UnsupportedModelError(
            f"A metric of model {model.name!r} writes a variable that is not its own "
            f"(in {use.operation!r}): whatever reads it would carry training data "
            "past clipping and noise. Keep the state of a metric in variables that "
            "`self.add_variable` makes."
        )

    with each_variable_use(check):
        yield


@contextlib.contextmanager
def update_reads_no_metrics(model: keras.Model) -> Iterator[None]:
    """Refuses an update of the weights, made in the body, that reads a metric.

    A schedule, a constraint, a regularizer or an inner optimizer that reads the training
    loss would carry it into the weights.

    Args:
      model: the model whose weights are updated.

    Raises:
      UnsupportedModelError: if it does, with the operation.
    """
    # Found at the first use, in a graph after the body; a walk over the whole model.
    metrics = functools.cache(lambda: metric_handles(model))

    def check(use: VariableUse) -> None:
        if id(use.handle) in metrics():
            raise UnsupportedModelError(
                f"The update of the weights of model {model.name!r} reads a metric (in "
                f"{use.operation!r}): an exact statistic of the training data would reach "
                "the weights. Remove it from the learning rate, constraint, regularizer "
                "or inner optimizer that reads it."
            )

    with each_variable_use(check):
        yield


@contextlib.contextmanager
def update_runs_no_host_code() -> Iterator[None]:
    """Refuses an update of the weights, made in the body in a graph, that runs host code.

    Raises:
      UnsupportedModelError: if it does, with the operation.
      RuntimeError: in eager code.
    """

    def refuse(operation: str) -> None:
        raise UnsupportedModelError(
            f"The update of the weights runs code outside of the graph (in "
            f"{operation!r}): it may have seen training data without noise, through a "
            "metric, say. Compute learning rates, constraints, regularizers and the "
            "inner optimizer with operations of Keras or TensorFlow."
        )

    with no_host_code(refuse):
        yield


def metric_handles(model: keras.Model) -> set[int]:
    """Ids of the handles of a model's metrics, those not yet built for data included."""
    handles = set()
    variables = list(model.metrics_variables)
    for metric in keras.tree.flatten(given_metrics(model)):
        # Names and functions have no variables yet: nothing can have read them.
        if isinstance(metric, keras.metrics.Metric):
            variables.extend(metric.variables)
    for variable in variables:
        raw = tensorflow_value(variable)
        for part in (raw, *getattr(raw, "values", ())):
            handles.add(id(getattr(part, "handle", None)))
    return handles
