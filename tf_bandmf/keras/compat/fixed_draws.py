"""Makes Keras' random functions return the same draws for all examples, in one thread.

The self-check compares the gradients of a batch with the gradients of single examples.
With ordinary random functions, a layer would draw different masks in the two passes.

Tests that fail if this breaks: `tests/keras/compat/test_fixed_draws.py`, which calls each
random function of Keras.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras.src import backend

from tf_bandmf.keras.compat.patching import all_patched

_FUNCTIONS = (
    "beta binomial categorical dropout gamma normal randint shuffle truncated_normal "
    "uniform"
).split()


def without_randomness() -> contextlib.AbstractContextManager[None]:
    """Returns a context in which dropout is off, and all examples get equal draws."""
    return all_patched((backend.random, name, _alike) for name in _FUNCTIONS)


def _alike(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    bound = inspect.signature(original).bind(*args, **kwargs)
    bound.apply_defaults()
    given = {**bound.arguments, "seed": 0}
    if "inputs" in given:
        return given["inputs"]
    if "logits" in given:
        likeliest = tf.cast(tf.argmax(given["logits"], axis=-1), given["dtype"])
        return tf.tile(likeliest[:, None], [1, given["num_samples"]])
    if "shape" not in given:
        return original(**given)
    shape = tf.cast(given["shape"], tf.int32)
    return tf.broadcast_to(original(**{**given, "shape": shape[1:]}), shape)
