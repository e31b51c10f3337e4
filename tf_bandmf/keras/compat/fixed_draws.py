"""Keras' random functions, made deterministic in a thread.

The self-check compares a batch with examples taken one by one, for which a layer would
draw other masks.

What tells that it broke: `tests/keras/compat/test_fixed_draws.py`, which calls each of
the functions named here.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src import backend

from tf_bandmf.keras.compat.patching import patched


def _fill(arguments: dict[str, Any], value: Any, dtype: Any = None) -> tf.Tensor:
    dtype = arguments.get("dtype") or dtype or keras.config.floatx()
    return tf.fill(arguments["shape"], tf.cast(value, dtype))


# Keras' random functions. Each entry maps the bound arguments to a result without chance.
_FUNCTIONS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "dropout": lambda a: a["inputs"],
    "normal": lambda a: _fill(a, a["mean"]),
    "truncated_normal": lambda a: _fill(a, a["mean"]),
    "uniform": lambda a: _fill(a, (a["minval"] + a["maxval"]) / 2),
    "randint": lambda a: _fill(a, a["minval"], "int32"),
    "shuffle": lambda a: tf.reverse(a["x"], axis=[a["axis"]]),
    "categorical": lambda a: tf.tile(
        tf.cast(tf.argmax(a["logits"], axis=-1), a["dtype"])[:, None],
        [1, a["num_samples"]],
    ),
    "gamma": lambda a: _fill(a, a["alpha"]),
    "binomial": lambda a: _fill(a, a["counts"] * a["probabilities"]),
    "beta": lambda a: _fill(a, a["alpha"] / (a["alpha"] + a["beta"])),
}


@contextlib.contextmanager
def without_randomness() -> Iterator[None]:
    """Replaces Keras' random functions by deterministic ones."""
    with contextlib.ExitStack() as stack:
        for name, result in _FUNCTIONS.items():
            stack.enter_context(patched(backend.random, name, _deterministic(result)))
        yield


def _deterministic(result: Callable[[dict[str, Any]], Any]) -> Callable[..., Any]:
    def replacement(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(original).bind(*args, **kwargs)
        bound.apply_defaults()
        return result(dict(bound.arguments))

    return replacement
