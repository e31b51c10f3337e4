"""Operations that stop the program because of a value in the data.

On CPUs TensorFlow raises for a label that is no class, and for an index past the end of
a table: one bad record would end the training, and that it ended would tell about it.
Within `bad_values_become_nan` the result is NaN instead, as on GPUs and under XLA, and
the record contributes nothing.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

_LOCK = threading.RLock()
_USERS = 0
_STATE = threading.local()
_ORIGINALS: dict[str, Callable[..., Any]] = {}
_SEGMENTS = tuple(f"unsorted_segment_{kind}" for kind in ("sum", "max", "min", "prod"))


@contextlib.contextmanager
def bad_values_become_nan() -> Iterator[None]:
    """Makes Keras' lookups and sparse cross-entropies total, in this thread."""
    global _USERS
    with _LOCK:
        if _USERS == 0:
            _ORIGINALS["gather"] = tf.gather
            _ORIGINALS["loss"] = tf.nn.sparse_softmax_cross_entropy_with_logits
            for name in _SEGMENTS:
                _ORIGINALS[name] = getattr(tf.math, name)
                setattr(tf.math, name, _total(name))
            tf.gather = _gather
            tf.nn.sparse_softmax_cross_entropy_with_logits = _cross_entropy
        _USERS += 1
    previous = getattr(_STATE, "active", False)
    _STATE.active = True
    try:
        yield
    finally:
        _STATE.active = previous
        with _LOCK:
            _USERS -= 1
            if _USERS == 0:
                for name in _SEGMENTS:
                    setattr(tf.math, name, _ORIGINALS[name])
                tf.gather = _ORIGINALS["gather"]
                tf.nn.sparse_softmax_cross_entropy_with_logits = _ORIGINALS["loss"]


def _gather(
    params: Any,
    indices: Any,
    validate_indices: Any = None,
    axis: Any = None,
    batch_dims: Any = 0,
    name: str | None = None,
) -> Any:
    original = _ORIGINALS["gather"]
    axis = batch_dims if axis is None else axis
    if not getattr(_STATE, "active", False) or not isinstance(axis, int):
        return original(params, indices, validate_indices, axis, batch_dims, name)
    params, indices = tf.convert_to_tensor(params), tf.convert_to_tensor(indices)
    ranks = params.shape.rank, indices.shape.rank
    if None in ranks or not isinstance(batch_dims, int):
        return original(params, indices, validate_indices, axis, batch_dims, name)
    axis, batch_dims = axis % ranks[0], batch_dims % (ranks[1] + 1)
    size = tf.shape(params, out_type=indices.dtype)[axis]
    valid = (indices >= 0) & (indices < size)
    found = original(
        params, tf.where(valid, indices, 0), axis=axis, batch_dims=batch_dims, name=name
    )
    if not found.dtype.is_floating:
        return found
    # Result: params[:axis], indices[batch_dims:], params[axis + 1:].
    shape = tf.shape(indices)
    ones = [1] * (axis - batch_dims), [1] * (ranks[0] - axis - 1)
    shape = tf.concat(
        [shape[:batch_dims], ones[0], shape[batch_dims:], ones[1]], axis=0
    )
    nan = tf.constant(float("nan"), found.dtype)
    return tf.where(tf.reshape(valid, shape), found, nan)


def _total(name: str) -> Callable[..., tf.Tensor]:
    """A sum over segments that leaves out what is in no segment, as on GPUs."""

    def segments(
        data: Any, segment_ids: Any, num_segments: Any, name_of: str | None = None
    ) -> tf.Tensor:
        original = _ORIGINALS[name]
        if not getattr(_STATE, "active", False):
            return original(data, segment_ids, num_segments, name_of)
        numbers = tf.convert_to_tensor(segment_ids)
        exists = numbers < tf.cast(num_segments, numbers.dtype)
        numbers = tf.where(exists, numbers, tf.constant(-1, numbers.dtype))
        return original(data, numbers, num_segments, name_of)

    return segments


def _cross_entropy(labels: Any, logits: Any, name: str | None = None) -> tf.Tensor:
    original = _ORIGINALS["loss"]
    if not getattr(_STATE, "active", False):
        return original(labels, logits, name=name)
    labels, logits = tf.convert_to_tensor(labels), tf.convert_to_tensor(logits)
    valid = (labels >= 0) & (labels < tf.shape(logits, out_type=labels.dtype)[-1])
    losses = original(tf.where(valid, labels, tf.zeros_like(labels)), logits, name=name)
    return tf.where(valid, losses, tf.constant(float("nan"), losses.dtype))
