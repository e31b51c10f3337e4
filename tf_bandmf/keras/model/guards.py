"""A private model inside a plain one is refused; a notice names work that takes long."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

import keras

from tf_bandmf.keras.compat.keras_objects import CALL_CONTEXT, global_state


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
