"""Prepares the first step: the optimizer, the weights, what is checked before it."""

from __future__ import annotations

from typing import Any, NoReturn

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping import (
    LookedUp,
    check_functions_are_traced,
    check_matmul_precision,
    check_supported,
    find_layers_alone,
    made_up,
    needs_self_check,
    self_check,
)
from tf_bandmf.keras.compat.keras_objects import all_layers
from tf_bandmf.keras.compat.optimizing import optimized_once
from tf_bandmf.keras.model.alone import check_layers_alone
from tf_bandmf.keras.model.batch_contents import contents
from tf_bandmf.keras.model.guards import announced
from tf_bandmf.keras.model.tables import lazy_layers
from tf_bandmf.keras.model.training_state import state_of
from tf_bandmf.keras.optimizer.inner_optimizers import check_accumulation
from tf_bandmf.keras.optimizer.private import PrivateOptimizer, private_optimizer_of

_CHECKED_EXAMPLES = 3


def optimizer_of(model: Any) -> PrivateOptimizer:
    """The private optimizer that a model is compiled with.

    Raises:
      TypeError: if it is compiled with another one.
      ValueError: if it belongs to another distribution strategy,
        or its inner optimizer accumulates gradients.
      RuntimeError: if the process rounds float32 products, or runs functions or the
        model's steps eagerly.
    """
    optimizer = private_optimizer_of(model)
    check_matmul_precision()
    check_functions_are_traced()
    if model.run_eagerly:
        refuse_eager_steps()
    check_accumulation(optimizer.inner_optimizer)
    strategy = model.distribute_strategy
    if num_replicas(model) > 1 and optimizer.run.strategy is not strategy:
        raise ValueError(
            "Model and PrivateOptimizer belong to different distribution strategies: "
            "make both within strategy.scope()."
        )
    return optimizer


def refuse_eager_steps() -> NoReturn:
    """Raises RuntimeError: a step is analysed as a graph."""
    raise RuntimeError(
        "A private step runs as a graph: debug the plain model, before make_private, and "
        "train the private one by fit, train_on_batch or private_gradients, compiled "
        "without run_eagerly=True."
    )


def num_replicas(model: Any) -> int:
    """The number of replicas on which a model trains."""
    strategy = model.distribute_strategy
    return 1 if strategy is None else strategy.num_replicas_in_sync


def build(model: Any, optimizer: PrivateOptimizer, data: Any) -> None:
    """Makes the variables of model and optimizer, from the shapes of a batch."""
    if not optimizer.built:
        build_model(model, data)
        begin_run(model, optimizer)


def begin_run(model: Any, optimizer: PrivateOptimizer) -> None:
    """Builds the optimizer of a built model, if it is not built: its run begins."""
    if not optimizer.built:
        state = state_of(model)
        optimizer.run.were_loaded |= state.were_loaded
        state.lazy_layers = lazy_layers(model, optimizer)
        state.looked_up = LookedUp(model, state.lazy_layers)
        tables = [layer.trainable_variables[0] for layer in state.lazy_layers]
        optimizer.run.keep_lazily(tables)
    optimizer.build(model.trainable_variables)


def refuse_text(data: Any) -> None:
    """Raises TypeError if targets are strings, from the dtypes alone."""
    for leaf in tf.nest.flatten(contents(data)[1]):
        if getattr(leaf, "dtype", None) == tf.string:
            raise TypeError(
                "Targets must be numbers, found strings. Give the numbers of the classes: "
                "classes, y = np.unique(labels, return_inverse=True)."
            )


def build_model(model: Any, data: Any) -> None:
    """Makes the weights; refuses models whose examples cannot be told apart."""
    refuse_text(data)
    if not model.built:
        # Made up: `call` is code of the user, which could keep what it is given.
        found = contents(data)
        is_there = all(not tf.is_symbolic_tensor(t) for t in tf.nest.flatten(found[0]))
        found = made_up(found, _CHECKED_EXAMPLES) if is_there else found
        model(found[0], training=False)
    check_supported(model)


def build_optimizer(model: Any, optimizer: PrivateOptimizer) -> None:
    """Builds it before the step is traced: making variables costs a second trace."""
    if optimizer.built or model._is_distributed:
        return
    if model.built and all(layer.built for layer in all_layers(model)):
        check_supported(model)
        begin_run(model, optimizer)


def check_examples(model: Any, optimizer: PrivateOptimizer, data: Any) -> None:
    """Refuses layers that would not do what they say; compares gradients, where due.

    Layers are checked first, because a loss may not accept what a layer that mixes
    examples makes of a single one. Gradients of made-up examples are compared with those
    of each by itself if somebody vouches for a layer or wrote a rule.

    Args:
      model: private, compiled and built.
      optimizer: of the model.
      data: a batch that is not empty; only its shapes and dtypes matter.
    """
    refuse_text(data)
    examples = made_up(contents(data), _CHECKED_EXAMPLES)
    state = state_of(model)
    if optimizer.run.tables is not None:
        state.looked_up(examples[0], None)
    find_layers_alone(model, examples[0])
    check_layers_alone(model, data, state.may_run_alone, state.is_quiet)
    if not needs_self_check(model):
        return
    telling = announced(
        "comparing the gradients of made-up examples with those that each has by itself.",
        state.is_quiet,
    )
    with telling, optimized_once():
        self_check(
            model, *contents(data), loss_scale_factor=optimizer.loss_scale_factor
        )


def without_dynamic_scale(new: Any, old: Any) -> Any:
    """What Keras' `compile` wraps into a LossScaleOptimizer under mixed_float16.

    Only what it wraps by itself: it has set the optimizer without the wrapper just before.
    """
    if (
        isinstance(new, keras.optimizers.LossScaleOptimizer)
        and isinstance(new.inner_optimizer, PrivateOptimizer)
        and new.inner_optimizer is old
    ):
        return old
    return new
