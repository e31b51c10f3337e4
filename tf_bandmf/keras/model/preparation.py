"""Prepares the first step: the optimizer, the weights, what is checked before it."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

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
from tf_bandmf.keras.compat.keras_objects import CALL_CONTEXT, global_state
from tf_bandmf.keras.compat.optimizing import optimized_once
from tf_bandmf.keras.model.alone import EXAMPLES, check_layers_alone
from tf_bandmf.keras.model.batch_contents import Contents
from tf_bandmf.keras.model.tables import lazy_layers
from tf_bandmf.keras.optimizer.private import (
    PrivateOptimizer,
    check_accumulation,
    private_optimizer_of,
)

# Seconds after which work is announced.
PATIENCE = 2.0


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
        raise RuntimeError(
            "A private step runs as a graph: debug the plain model, before make_private, "
            "and train the private one by fit, train_on_batch or private_gradients, "
            "compiled without run_eagerly=True."
        )
    check_accumulation(optimizer.inner_optimizer)
    strategy = model.distribute_strategy
    if num_replicas(model) > 1 and optimizer.run.strategy is not strategy:
        raise ValueError(
            "Model and PrivateOptimizer belong to different distribution strategies: "
            "make both within strategy.scope()."
        )
    return optimizer


def num_replicas(model: Any) -> int:
    """The number of replicas on which a model trains."""
    return int(model.distribute_strategy.num_replicas_in_sync)


def build(model: Any, optimizer: PrivateOptimizer, data: Any = None) -> None:
    """Makes the variables of model and optimizer, if they are not built: the run begins.

    Args:
      model: private and compiled.
      optimizer: of the model.
      data: a batch, of which shapes and dtypes matter; None if the model is built.
    """
    if not optimizer.built:
        build_model(model, data)
        state = model._training
        optimizer.run.were_loaded |= state.were_loaded
        state.lazy_layers = lazy_layers(model, optimizer)
        state.looked_up = LookedUp(model, state.lazy_layers)
        tables = [layer.trainable_variables[0] for layer in state.lazy_layers]
        optimizer.run.keep_lazily(tables)
    optimizer.build(model.trainable_variables)


def build_model(model: Any, data: Any = None) -> None:
    """Makes the weights; refuses models whose examples cannot be told apart."""
    if not model.built and data is not None:
        # Made up: `call` is code of the user, which could keep what it is given.
        found = Contents.of(data).by_row()
        _refuse_text(found[1])
        is_there = all(not tf.is_symbolic_tensor(t) for t in tf.nest.flatten(found[0]))
        found = made_up(found, EXAMPLES) if is_there else found
        model(found[0], training=False)
    check_supported(model)


def _refuse_text(targets: Any) -> None:
    """Raises TypeError if targets are strings, from the dtypes alone."""
    for leaf in tf.nest.flatten(targets):
        if getattr(leaf, "dtype", None) == tf.string:
            raise TypeError(
                "Targets must be numbers, found strings. Give the numbers of the classes: "
                "classes, y = np.unique(labels, return_inverse=True)."
            )


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
    contents, state = Contents.of(data).by_row(), model._training
    _refuse_text(contents[1])
    inputs = made_up(contents, EXAMPLES)[0]
    if optimizer.run.tables is not None:
        state.looked_up(inputs, None)
    find_layers_alone(model, inputs)
    check_layers_alone(model, inputs, state.may_run_alone, state.is_quiet)
    if not needs_self_check(model):
        return
    telling = announced(
        "comparing the gradients of made-up examples with those that each has by itself.",
        state.is_quiet,
    )
    with telling, optimized_once():
        self_check(model, *contents, loss_scale_factor=optimizer.loss_scale_factor)


def refuse_preprocessor(model: Any) -> None:
    """Raises ValueError if a model would preprocess whole batches in its step.

    Args:
      model: private, of any class, such as a task of KerasHub.
    """
    is_none = getattr(model, "preprocessor", None) is None
    if is_none or not hasattr(model, "preprocess_samples"):
        return
    raise ValueError(
        f"Model {model.name!r} has a preprocessor, which would see whole batches. Take it "
        f"out, and let the batches call it for each example: preprocess = "
        f"model.preprocessor; model.preprocessor = None; plan.batches(x, y, "
        f"map=preprocess). Apply one that keeps a cache of tokens, or that makes targets, "
        f"beforehand: x, y, sample_weight = preprocess(texts). To predict from raw data, "
        f"set model.preprocessor = preprocess after training."
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


def refuse_plain_outer_training(
    model: keras.Model, private_class: type, training: Any
) -> None:
    """Raises RuntimeError where a plain model would train a private one inside it.

    Args:
      model: the private model that is about to be called.
      private_class: of private models.
      training: what the caller says.
    """
    context = global_state.get_global_attribute(CALL_CONTEXT)
    outer = getattr(context, "entry_layer", None)
    if outer is None or outer is model or isinstance(outer, private_class):
        return
    if training is None:
        training = context.get_value("training")
    if training and model.trainable_variables:
        raise RuntimeError(
            f"The private model {model.name!r} is a layer of {outer.name!r}, which would "
            f"train its weights without privacy. Make the outer model private (give it "
            f"to_plain({model.name}) as its layer, then make_private), or set "
            f"{model.name}.trainable = False. For public data use to_plain({model.name})."
        )


@contextlib.contextmanager
def announced(what: str, quiet: bool = False) -> Iterator[None]:
    """Prints to standard error what is being done, if it takes over two seconds.

    Args:
      what: a sentence.
      quiet: prints nothing.
    """
    if quiet:
        yield
        return

    def say() -> None:
        print(f"tf_bandmf: {what}", file=sys.stderr, flush=True)

    timer = threading.Timer(PATIENCE, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
