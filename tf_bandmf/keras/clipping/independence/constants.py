"""Integers that are known while a graph is made, beyond what TensorFlow folds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_bandmf.graphs.shapes import followed, shape_of
from tf_bandmf.keras.compat.graphs import tensor_util

_FOLDED: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "AddV2": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
    "Less": np.less,
    "LessEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterEqual": np.greater_equal,
    "Equal": np.equal,
    "NotEqual": np.not_equal,
    "Select": np.where,
    "SelectV2": np.where,
    "FloorMod": np.mod,
    "Neg": np.negative,
    "InvertPermutation": np.argsort,
}


def _reduced_axes(first: np.ndarray, second: np.ndarray) -> list[list[int]]:
    """Axes along which the gradients of two broadcast tensors are added up."""
    if list(first) == list(second):
        return [[], []]
    rank = max(len(first), len(second))
    shapes = [[1] * (rank - len(s)) + [int(d) for d in s] for s in (first, second)]
    return [[axis for axis in range(rank) if one[axis] == 1] for one in shapes]


def _offsets(axis: np.ndarray, *shapes: np.ndarray) -> list[np.ndarray]:
    """Where each of several tensors begins, put side by side."""
    found, place = [], 0
    for shape in shapes:
        start = np.zeros_like(shape)
        start[int(axis)] = place
        found.append(start)
        place += int(shape[int(axis)])
    return found


_OF_SHAPES: dict[str, Callable[..., Any]] = {
    "BroadcastGradientArgs": _reduced_axes,
    "ConcatOffset": _offsets,
}
# Larger ones are no axes, shapes or positions of axes.
_MOST_ENTRIES = 32
_DEEPEST = 12


def folded(tensor: tf.Tensor) -> np.ndarray | None:
    """What TensorFlow folds a tensor to, by shapes that follow from operations alone."""
    found = followed(tensor)
    return None if found is None else tensor_util.constant_value(found)


def constant_value(tensor: tf.Tensor) -> np.ndarray | None:
    """The value of a small integer tensor if it is known while the graph is made."""
    return _value(tensor, _DEEPEST)


def _value(tensor: tf.Tensor, depth: int) -> np.ndarray | None:
    found = folded(tensor)
    if found is not None or depth == 0:
        return found
    op = tensor.op
    if op.type == "Cast" and (tensor.dtype.is_integer or tensor.dtype.is_bool):
        inside = _small(op.inputs[0], depth)
        return None if inside is None else inside.astype(tensor.dtype.as_numpy_dtype)
    if op.type == "ConcatV2":
        found_parts = [_small(part, depth) for part in op.inputs[:-1]]
        parts = [part for part in found_parts if part is not None]
        if shape_of(tensor).rank != 1 or len(parts) < len(found_parts):
            return None
        return np.concatenate(parts)
    if op.type not in _FOLDED and op.type not in _OF_SHAPES:
        return None
    values = [_small(part, depth) for part in op.inputs]
    if any(value is None for value in values):
        return None
    if op.type in _OF_SHAPES:
        found = _OF_SHAPES[op.type](*values)[tensor.value_index]
        return np.asarray(found, tensor.dtype.as_numpy_dtype)
    function = _FOLDED[op.type]
    with np.errstate(all="ignore"):
        return np.asarray(function(*values), tensor.dtype.as_numpy_dtype)


def _small(tensor: tf.Tensor, depth: int) -> np.ndarray | None:
    is_number = tensor.dtype.is_integer or tensor.dtype.is_bool
    if not is_number or (shape_of(tensor).num_elements() or 0) > _MOST_ENTRIES:
        return None
    return _value(tensor, depth - 1)
