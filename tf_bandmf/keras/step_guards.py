"""What stands around a private training step: whose turn it is, and that it takes place."""

from __future__ import annotations

import functools
from typing import Any, Callable


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


def private_inside(train_step: Callable[..., Any]) -> Callable[..., Any]:
    """A subclass' own training step, which must call the private one.

    In a graph it is refused when it is traced, before anything was computed.
    """

    @functools.wraps(train_step)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = self._steps_begun
        result = train_step(self, *args, **kwargs)
        if self._steps_begun == before:
            raise RuntimeError(
                f"{type(self).__name__}.train_step does not call the private training "
                f"step: what it does with the data is not private. Call "
                f"super().train_step(data) in it and leave the weights alone, or remove it."
            )
        return result

    return checked
