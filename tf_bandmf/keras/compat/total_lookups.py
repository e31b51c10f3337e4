"""Operations that stop the program because of a value in the data.

On CPUs TensorFlow raises for a label that is no class, and for an index past the end of
a table: one bad record would end the training, and that it ended would tell about it.
Within `bad_values_become_nan` the result is NaN instead, as on GPUs and under XLA, and
the record contributes nothing. What a vocabulary looks up gets the shape of its keys by an
operation: TensorFlow only claims it, which the analysis of the graph does not believe.

What tells that it broke: `tests/keras/clipping/test_contributions.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_bandmf.keras.compat.ctc import ctc_loss
from tf_bandmf.keras.compat.patching import patched

_SEGMENTS = tuple(f"unsorted_segment_{kind}" for kind in ("sum", "max", "min", "prod"))


@contextlib.contextmanager
def bad_values_become_nan() -> Iterator[None]:
    """Makes Keras' lookups, sparse cross-entropies and CTC total, in this thread."""
    with contextlib.ExitStack() as stack:
        for name in _SEGMENTS:
            stack.enter_context(patched(tf.math, name, _segments))
        stack.enter_context(patched(tf, "gather", _gather))
        stack.enter_context(
            patched(tf.nn, "sparse_softmax_cross_entropy_with_logits", _cross_entropy)
        )
        stack.enter_context(patched(tf.nn, "ctc_loss", _ctc_loss))
        stack.enter_context(patched(tf.lookup.StaticHashTable, "lookup", _vocabulary))
        yield


@contextlib.contextmanager
def host_errors_become_nan() -> Iterator[None]:
    """Lets code of Python that metrics call return NaN where it raises, in this thread.

    In a graph; zeros where there is no NaN, of the shape that it returned before.
    """
    with contextlib.ExitStack() as stack:
        for name in ("numpy_function", "py_function"):
            stack.enter_context(patched(tf, name, _caught))
        yield


def _caught(
    original: Callable[..., Any], func: Any, inp: Any, Tout: Any, **kw: Any
) -> Any:
    """As the original, of a function that does not raise."""
    shapes: list[tuple[int, ...]] = []
    types = [tf.as_dtype(dtype) for dtype in tf.nest.flatten(Tout)]

    def call(*args: Any) -> Any:
        try:
            found = func(*args)
        except Exception:
            known = shapes or [()] * len(types)
            values = [_nothing(t, s) for t, s in zip(types, known, strict=True)]
            return tf.nest.pack_sequence_as(Tout, values)
        shapes[:] = [np.shape(part) for part in tf.nest.flatten(found)]
        return found

    return original(call, inp, Tout, **kw)


def _nothing(dtype: tf.DType, shape: tuple[int, ...]) -> Any:
    if dtype == tf.string:
        return np.full(shape, b"", object)
    value = float("nan") if dtype.is_floating or dtype.is_complex else 0
    return np.full(shape, value, dtype.as_numpy_dtype)


def _gather(
    original: Callable[..., Any],
    params: Any,
    indices: Any,
    validate_indices: Any = None,
    axis: Any = None,
    batch_dims: Any = 0,
    name: str | None = None,
) -> Any:
    axis = batch_dims if axis is None else axis
    if not isinstance(axis, int):
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


def _vocabulary(
    original: Callable[..., Any], table: Any, keys: Any, name: str | None = None
) -> Any:
    found = original(table, keys, name)
    return tf.ensure_shape(found, keys.shape) if isinstance(keys, tf.Tensor) else found


def _segments(
    original: Callable[..., Any],
    data: Any,
    segment_ids: Any,
    num_segments: Any,
    name: str | None = None,
) -> tf.Tensor:
    """A sum over segments that leaves out what is in no segment, as on GPUs."""
    numbers = tf.convert_to_tensor(segment_ids)
    exists = numbers < tf.cast(num_segments, numbers.dtype)
    numbers = tf.where(exists, numbers, tf.constant(-1, numbers.dtype))
    return original(data, numbers, num_segments, name)


def _cross_entropy(
    original: Callable[..., Any], labels: Any, logits: Any, name: str | None = None
) -> tf.Tensor:
    labels, logits = tf.convert_to_tensor(labels), tf.convert_to_tensor(logits)
    if logits.shape.rank is not None and logits.shape.rank > 2:
        # As TensorFlow does it, where what is valid can be seen.
        labels.shape.assert_is_compatible_with(logits.shape[:-1])
        classes = logits.shape[-1] or tf.shape(logits)[-1]
        flat = tf.reshape(labels, [-1]), tf.reshape(logits, [-1, classes])
        losses = _cross_entropy(original, *flat, name=name)
        return tf.reshape(losses, tf.shape(labels))
    valid = (labels >= 0) & (labels < tf.shape(logits, out_type=labels.dtype)[-1])
    losses = original(tf.where(valid, labels, tf.zeros_like(labels)), logits, name=name)
    return tf.where(valid, losses, tf.constant(float("nan"), losses.dtype))


def _ctc_loss(
    original: Callable[..., Any],
    labels: Any,
    logits: Any,
    label_length: Any,
    logit_length: Any,
    logits_time_major: bool = True,
    unique: Any = None,
    blank_index: int | None = None,
    name: str | None = None,
) -> tf.Tensor:
    """As the original, where it is called as Keras does."""
    lengths = label_length, logit_length
    if logits_time_major or blank_index is None or not tf.is_tensor(labels):
        more = (logits_time_major, unique, blank_index, name)
        return original(labels, logits, *lengths, *more)
    return ctc_loss(labels, logits, *lengths, blank_index % logits.shape[-1])
