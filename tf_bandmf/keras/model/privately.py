"""Trains a private model in one call; returns the model and its privacy statement.

For example:

    fitted = tf_bandmf.keras.fit_privately(
        model, x, y, epsilon=4, delta=1e-6, epochs=10, loss="mse"
    )
    fitted.model.save("released.keras")
    print(fitted.statement)
"""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_bandmf.keras.compat.keras_objects import compiled_arguments
from tf_bandmf.keras.model import preparation
from tf_bandmf.keras.model.conversion import make_private, to_plain
from tf_bandmf.keras.model.fit_data import check_inputs
from tf_bandmf.keras.optimizer.private import PrivateOptimizer
from tf_bandmf.planning.advice import Advice, advise
from tf_bandmf.planning.plan import Plan
from tf_bandmf.planning.statement import PrivacyCard, PrivacyStatement


@dataclasses.dataclass(frozen=True, eq=False)
class PrivateFit:
    """A model that was trained privately, and its privacy statement.

    Attributes:
      model: the model to release, a plain model compiled with the loss and the metrics.
      plan: the plan of the run.
      advice: the advice from which the plan was made; None if the caller passed a plan.
      history: the history that `fit` returned. WARNING: its losses and metrics of the
        training data are exact: they have no noise.
      trained: the private model that was trained.
    """

    model: keras.Model
    plan: Plan
    advice: Advice | None
    history: keras.callbacks.History
    trained: Any

    @property
    def statement(self) -> PrivacyStatement:
        """The joint privacy statement of all runs of this process on the data so far.

        Raises:
          ValueError: if these runs protect different privacy units; see
            `trained.privacy_statement(unit)`.
        """
        return self.trained.privacy_statement()

    @property
    def card(self) -> PrivacyCard:
        """The privacy statement with a plain explanation, for a model card."""
        return self.statement.card()

    def __str__(self) -> str:
        return str(self.statement)


def fit_privately(
    model: keras.Model,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    epochs: int | None = None,
    plan: Plan | None = None,
    optimizer: str | keras.optimizers.Optimizer = "sgd",
    loss: Any = None,
    metrics: Any = None,
    microbatch_size: int | None = None,
    additional_run: bool = False,
    verbose: str | int = "auto",
    **fit_arguments: Any,
) -> PrivateFit:
    """Trains a Keras model with a privacy budget, and returns the model to release.

    `tf_bandmf.advise` chooses batch size, sampling, mechanism, clip norm, learning rate,
    momentum and whether weights are averaged; its choice is printed. To choose
    yourself, pass a `plan` of `tf_bandmf.plan`, a custom optimizer, or both.

    Each row of x is one privacy unit: the guarantee hides the data of one row. Inputs
    and targets should have values of about 1: divide them by public scales.

    Args:
      model: built or not, compiled or not. It is made private in place.
      x: inputs, arrays [N, ...]; or anything else that `Plan.batches` reads by index.
      y: targets, arrays [N, ...].
      sample_weight: shape [N], or None.
      epsilon: budget, > 0. Pass epsilon, delta and epochs, or a plan.
      delta: budget, in [1e-20, 1); below 1 / N.
      epochs: number of passes over the data; choose as many as your compute allows.
      plan: a plan for x, instead of epsilon, delta and epochs.
      optimizer: "sgd" or "adam", with advised arguments (for "sgd", also momentum); or
        a Keras optimizer.
      loss: as for `compile`; by default, the loss that the model is compiled with.
      metrics: as for `compile`; by default, those that the model is compiled with.
      microbatch_size: as for `make_private`.
      additional_run: True if another run used these data: the statement then covers both.
      verbose: as for `fit`; if it is 0, the advice is not printed, either.
      **fit_arguments: as for `fit` of private models: `validation_data`, `callbacks`,
        `class_weight`, `private_state`.

    Returns:
      The released model with its statement.

    Raises:
      TypeError: if the data are a stream.
      ValueError: if there is no loss; if the caller passes both a plan and a budget, or
        no plan and an incomplete budget; or if `optimizer` is neither "sgd" nor "adam"
        nor a Keras optimizer.
      UnsupportedModelError: if the model mixes examples. It is raised before training.
    """
    budget = {"epsilon": epsilon, "delta": delta, "epochs": epochs}
    missing = [name for name, value in budget.items() if value is None]
    if len(missing) != (0 if plan is None else len(budget)):
        end = f"; missing: {', '.join(missing)}." if plan is None else "."
        raise ValueError(
            f"Pass either all of epsilon, delta and epochs, or only a plan{end}"
        )
    partial = {"steps_per_epoch", "initial_epoch"} & fit_arguments.keys()
    if partial:
        raise ValueError(
            f"Omit {', '.join(partial)}: fit_privately takes all steps of its plan. Pass "
            f"fewer epochs; or, to train in several parts, call model.fit with one plan."
        )
    optimizer = optimizer.lower() if isinstance(optimizer, str) else optimizer
    compiling = _compiling(model, loss, metrics)
    # If x does not consist of arrays, it contains the targets.
    if y is None and _are_arrays(x):
        raise ValueError(
            "y is missing. Call fit_privately(model, x, y, ...). For autoencoders, y=x."
        )
    # These checks come first, because the advice takes seconds.
    _build(model, x)
    check_inputs(model, x)
    num_weights = sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    advice = None
    if plan is None:
        advice = advise(
            num_examples=_number_of(x),
            num_parameters=num_weights,
            optimizer=optimizer if isinstance(optimizer, str) else "sgd",
            loss=compiling["loss"],
            **budget,  # type: ignore[arg-type]
        )
        plan = advice.plan
        if verbose != 0:
            print(advice)
            if not isinstance(optimizer, str):
                print(f"optimizer: the given {type(optimizer).__name__} instead")
    if isinstance(optimizer, str):
        arguments = plan.optimizer_arguments(num_weights, optimizer, compiling["loss"])
        optimizer = keras.optimizers.get({"class_name": optimizer, "config": arguments})
    batches = plan.batches(x, y, sample_weight)
    make_private(model, microbatch_size=microbatch_size)
    # If the model cannot be converted, `to_plain` raises here, before training.
    released = to_plain(model)
    private = PrivateOptimizer(optimizer, plan, additional_run=additional_run)
    model.compile(private, **compiling)
    history = model.fit(batches, epochs=plan.epochs, verbose=verbose, **fit_arguments)
    to_plain(model, into=released)
    # With SGD, the saved model is loaded without a warning. If it were saved with an
    # unused RMSprop, Keras' default, Keras would warn that the file lacks variables.
    released.compile("sgd", **compiling)
    return PrivateFit(released, plan, advice, history, model)


def _compiling(model: keras.Model, loss: Any, metrics: Any) -> dict[str, Any]:
    """Returns the arguments of `compile`, except the optimizer."""
    compiling = compiled_arguments(model)
    compiling.pop("optimizer", None)
    compiling |= {} if loss is None else {"loss": loss}
    compiling |= {} if metrics is None else {"metrics": metrics}
    if compiling.get("loss") is None:
        raise ValueError(
            "The model has no loss. Pass one: fit_privately(..., loss=...)."
        )
    return compiling


def _are_arrays(x: Any) -> bool:
    return all(hasattr(leaf, "shape") for leaf in tf.nest.flatten(x))


def _number_of(x: Any) -> int:
    """Returns the number of examples in the data of `fit_privately`."""
    first = tf.nest.flatten(x)[0] if isinstance(x, (dict, list, tuple)) else x
    shape = getattr(first, "shape", None)
    if shape:
        return int(shape[0])
    if isinstance(x, tf.data.Dataset) or not hasattr(first, "__len__"):
        raise TypeError(
            f"The number of examples in x is unknown, because x is a {type(x).__name__}. "
            f"Pass arrays; or an object x that has len(x) examples x[i]; or a plan for "
            f"these data: plan=tf_bandmf.plan(...)."
        )
    return len(first)


def _build(model: keras.Model, x: Any) -> None:
    """Builds a model that has no weights yet; refuses models that mix examples."""
    rows = None
    if not model.built:
        if not _are_arrays(x):
            raise ValueError(
                "The model has no weights yet, and x has no shape to build them from. "
                "First, call the model once on made-up inputs: model(inputs)."
            )
        rows = (tf.nest.map_structure(lambda leaf: np.asarray(leaf[:1]), x),)
    preparation.build_model(model, rows)
