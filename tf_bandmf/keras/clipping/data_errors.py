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


@contextlib.contextmanager
def bad_values_become_nan() -> Iterator[None]:
    """Makes Keras' lookups and sparse cross-entropies total, in this thread."""
    global _USERS
    with _LOCK:
        if _USERS == 0:
            _ORIGINALS["gather"] = tf.gather
            _ORIGINALS["loss"] = tf.nn.sparse_softmax_cross_entropy_with_logits
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
                tf.gather = _ORIGINALS["gather"]
                tf.nn.sparse_softmax_cross_entropy_with_logits = _ORIGINALS["loss"]


def _gather(params: Any, indices: Any, *args: Any, **kwargs: Any) -> Any:
    original = _ORIGINALS["gather"]
    if not getattr(_STATE, "active", False) or not _is_lookup(args, kwargs):
        return original(params, indices, *args, **kwargs)
    params, indices = tf.convert_to_tensor(params), tf.convert_to_tensor(indices)
    size = tf.shape(params, out_type=indices.dtype)[0]
    valid = (indices >= 0) & (indices < size)
    found = original(params, tf.where(valid, indices, 0), axis=0)
    if not found.dtype.is_floating:
        return found
    valid = tf.reshape(
        valid,
        tf.concat([tf.shape(indices), [1] * (params.shape.rank - 1)], axis=0),
    )
    return tf.where(valid, found, tf.constant(float("nan"), found.dtype))


def _is_lookup(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether rows of a table are looked up, as all of Keras' layers do."""
    return not args and set(kwargs) <= {"axis"} and kwargs.get("axis") in (None, 0)


def _cross_entropy(labels: Any, logits: Any, name: str | None = None) -> tf.Tensor:
    original = _ORIGINALS["loss"]
    if not getattr(_STATE, "active", False):
        return original(labels, logits, name=name)
    labels, logits = tf.convert_to_tensor(labels), tf.convert_to_tensor(logits)
    valid = (labels >= 0) & (labels < tf.shape(logits, out_type=labels.dtype)[-1])
    losses = original(tf.where(valid, labels, tf.zeros_like(labels)), logits, name=name)
    return tf.where(valid, losses, tf.constant(float("nan"), losses.dtype))
