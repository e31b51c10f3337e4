"""The callbacks that `fit` was given."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf


def each_callback(callbacks: Any) -> list[Any]:
    """The callbacks that `fit` was given: one, several, a `CallbackList`, or none."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    return [] if callbacks is None else tf.nest.flatten(callbacks)
