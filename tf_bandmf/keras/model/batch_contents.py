"""What a batch holds: of a schedule, or of a stream that the caller makes."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping import present_rows
from tf_bandmf.sampling import batches as batches_lib


def unwrap_single(data: Any) -> Any:
    """A scheduled batch that `train_on_batch` put into a tuple."""
    if isinstance(data, tuple) and batches_lib.is_scheduled_batch(data[0]):
        if any(item is not None for item in data[1:]):
            raise ValueError("A scheduled batch holds its targets and weights itself.")
        return data[0]
    return data


def as_given(data: Any) -> Any:
    """A batch of an iterator, or its specs; None stands for what has no value."""

    def value(leaf: Any) -> Any:
        none = (tf.experimental.Optional, tf.OptionalSpec)
        return None if isinstance(leaf, none) else leaf

    return unwrap_single(keras.tree.map_structure(value, data))


def as_drawn(data: Any) -> tuple[Any, Any, Any, Any]:
    """Inputs, targets, sample weights and, of units, the rows of a batch of any kind."""
    data = unwrap_single(data)
    if batches_lib.is_scheduled_batch(data):
        keys = batches_lib.CONTENT[:4]
        inputs, targets, weights, rows = (data.get(key) for key in keys)
        return inputs, targets, weights, rows
    return (*keras.utils.unpack_x_y_sample_weight(data), None)


def shares(data: Any) -> Any:
    """What part of the clip norm each example may contribute, or None for all of it."""
    data = unwrap_single(data)
    if batches_lib.is_scheduled_batch(data) and batches_lib.ROWS not in data:
        return data.get(batches_lib.SHARE)
    return None


def contents(data: Any) -> tuple[Any, Any, Any]:
    """Inputs, targets and sample weights of a batch of any kind, row by row."""
    *found, rows = as_drawn(data)
    if rows is not None:
        found = present_rows(found, rows)
    return found[0], found[1], found[2]
