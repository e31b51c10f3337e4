"""Callbacks: which there are, and the one that swaps weights for their averages.

Keras swaps by adding and subtracting, which leaves weights that differ in their last
bits: whoever watches the weights is told of it.

What tells that it broke: the tests of `SwapEMAWeights` in `tests/keras/run`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf


def each_callback(callbacks: Any) -> list[Any]:
    """The callbacks that `fit` was given: one, several, a `CallbackList`, or none."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    return [] if callbacks is None else tf.nest.flatten(callbacks)


def around_swaps(
    callback: keras.callbacks.SwapEMAWeights,
    around: Callable[[Callable[[], Any]], Any],
) -> None:
    """Calls a function with each swap that the callback would do, for good."""
    for name in ("_swap_variables", "_finalize_ema_values"):
        swap = getattr(type(callback), name).__get__(callback)

        def instead(swap: Callable[[], Any] = swap) -> Any:
            return around(swap)

        vars(callback)[name] = instead
