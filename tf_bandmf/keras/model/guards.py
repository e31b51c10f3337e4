"""Guards around the private training step: threads take turns, other steps are refused.

A private model inside a plain one is refused, and a notice names work that takes long.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Iterator
from typing import Any, Callable

import keras

from tf_bandmf.keras.clipping import UnsupportedModelError
from tf_bandmf.keras.compat.keras_objects import CALL_CONTEXT, global_state
from tf_bandmf.keras.compat.optimizing import optimized_once


def in_turn(model: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """A training function that threads call one after the other.

    Two threads that took one step at the same time would both use its noise. The second
    thread finds the step taken, and is refused if its batch is of that step.

    Args:
      model: a private model; the run of its optimizer at the time of a call has
        the lock.
      function: what Keras made of the training step.
    """

    @functools.wraps(function)
    def one_at_a_time(*args: Any, **kwargs: Any) -> Any:
        run = model._private_optimizer().run
        with run.turn:
            if run.tables is not None:
                run.tables.begin()
            with optimized_once():
                return function(*args, **kwargs)

    return one_at_a_time


_FIX = (
    "what it does with the data would not be private. Remove it. For a training loop of "
    "your own use `private_gradients` and `apply_noisy`."
)


def refused(train_step: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces a subclass' own training step: raises before anything is done."""

    @functools.wraps(train_step)
    def refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise UnsupportedModelError(
            f"Class {type(self).__name__!r} overrides `train_step`: {_FIX}"
        )

    return refuse


def refuse_other_loops(model: Any, own: Any) -> None:
    """Raises UnsupportedModelError if Keras would train by another function than ours.

    Args:
      model: private.
      own: the class whose `make_train_function` it must have, not that of a mixin
        before it, nor an assigned one.
    """
    found = type(model).make_train_function
    if found is not own.make_train_function:
        raise UnsupportedModelError(
            f"Class {type(model).__name__!r} overrides `make_train_function`: {_FIX}"
        )


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


PATIENCE = 2.0


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
