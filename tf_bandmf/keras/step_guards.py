"""What stands around a private training step: whose turn it is, and that it is ours."""

from __future__ import annotations

import functools
from typing import Any, Callable

from tf_bandmf.keras.clipping import UnsupportedModelError


def in_turn(model: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """A training function that threads call one after the other.

    Two that took one step at the same time would both use its noise. The second one finds
    the step taken, and is refused if its batch is of that step.

    Args:
      model: private; its optimizer at the time of a call has the lock.
      function: what Keras made of the training step.
    """

    @functools.wraps(function)
    def one_at_a_time(*args: Any, **kwargs: Any) -> Any:
        with model._private_optimizer().turn:
            return function(*args, **kwargs)

    return one_at_a_time


_FIX = (
    "what it does with the data would not be private. Remove it. For a training loop of "
    "your own use `private_gradients` and `apply_noisy`."
)


def refused(train_step: Callable[..., Any]) -> Callable[..., Any]:
    """In the place of a subclass' own training step: an error, before anything is done."""

    @functools.wraps(train_step)
    def refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise UnsupportedModelError(
            f"Class {type(self).__name__!r} overrides `train_step`: {_FIX}"
        )

    return refuse


def refuse_other_loops(model: Any, own: type) -> None:
    """Raises UnsupportedModelError if Keras would train by another function than ours.

    Args:
      model: private.
      own: the class whose `make_train_function` it must have: not that of a mixin which
        stands before it, nor one that was assigned.
    """
    found = type(model).make_train_function
    if found is not own.make_train_function:  # type: ignore[attr-defined]
        raise UnsupportedModelError(
            f"Class {type(model).__name__!r} overrides `make_train_function`: {_FIX}"
        )
