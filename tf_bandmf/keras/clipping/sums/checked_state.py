"""Weights and state of a model while its gradients are compared: drawn, then restored."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_bandmf.keras.clipping.tensors.errors import ClippingMismatchError
from tf_bandmf.keras.clipping.tensors.table_readers import TableReader


def squared(array: Any) -> float:
    """The sum of the squares of a float64 array: one pass without copies."""
    # Not `vdot`: threads of BLAS that wait for work take their time.
    flat = array.reshape(-1)
    return float(np.einsum("i,i", flat, flat))


@contextlib.contextmanager
def unchanged_state(
    model: keras.Model, tables: Mapping[int, TableReader]
) -> Iterator[Callable[[bool], None]]:
    """Restores weights that a forward pass changes; refuses data-dependent ones.

    Yields:
      A function that draws all weights and state at random, of the size that they have:
      with both signs, or positive.

    Raises:
      ClippingMismatchError: if the forward pass changed a weight. What is not a
        seed would carry data into the model without noise.
    """
    # For tables that readers read, it is shown that the pass writes nothing.
    states = [state for state in model.variables if id(state) not in tables]
    before = [np.array(state.numpy()) for state in states]
    sizes = [_size_of(state, old) for state, old in zip(states, before, strict=True)]
    rng = np.random.default_rng(0)
    during: list[np.ndarray[Any, Any]] = []

    def note() -> None:
        during[:] = [np.array(state.numpy()) for state in states]

    def compare() -> None:
        for state, old in zip(states, during, strict=True):
            if "seed_generator" in state.path:
                continue
            if not _are_equal(old, state.numpy()):
                raise ClippingMismatchError(
                    f"The forward pass of model {model.name!r} changes the weight "
                    f"{state.path!r}. A state computed from data is released without "
                    "noise with the model. Remove the layer or freeze it with "
                    "`layer.trainable = False` if that stops its updates."
                )

    def draw(has_both_signs: bool) -> None:
        compare()
        for state, size in zip(states, sizes, strict=True):
            if size is None:
                continue
            values = rng.random(tuple(state.shape), np.float32)
            if has_both_signs:
                values += values - 1
            # Each sign is as likely as the other, and no value is near zero.
            values += np.copysign(np.float32(0.2), values)
            values *= np.float32(size)
            state.assign(tf.cast(values, state.dtype))
        note()

    try:
        _move_constants(states)
        note()
        yield draw
        compare()
    finally:
        for state, old in zip(states, before, strict=True):
            state.assign(old)


def _size_of(state: Any, values: Any) -> float | None:
    """The root mean square of a state's values, or 0.1; None if it is not drawn."""
    if not _is_real(state):
        return None
    size = math.sqrt(squared(values.astype(np.float64)) / max(values.size, 1) or 0.01)
    return size if math.isfinite(size) else 0.1


def _are_equal(one: Any, other: Any) -> bool:
    """Whether arrays are equal, NaN being NaN; most are, bit for bit."""
    if one.tobytes() == other.tobytes():
        return one.shape == other.shape and one.dtype == other.dtype
    return np.array_equal(one, other, equal_nan=True)


def _is_real(state: Any) -> bool:
    return state.shape is not None and (state.dtype.startswith(("float", "bfloat")))


def _move_constants(states: list[Any]) -> None:
    """Makes weights that are all zero, or all one, differ: a factor of them shows.

    Gates open, biases show, and so does a gain that a rule forgot.
    """
    rng = np.random.default_rng(0)
    for state in states:
        if not _is_real(state):
            continue
        value = _constant_of(state.numpy())
        if value is not None:
            size = 0.1 if value == 0.0 else 0.1 * value
            values = value + size * (1 + rng.random(tuple(state.shape)))
            state.assign(keras.ops.cast(values, state.dtype))


def _constant_of(values: Any) -> float | None:
    """The value that all entries have, if it is finite; None if there is none."""
    if not values.size:
        return None
    value = float(values.flat[0])
    # Most others are seen by their last entry.
    if not math.isfinite(value) or float(values.flat[-1]) != value:
        return None
    return value if np.all(values == values.flat[0]) else None
