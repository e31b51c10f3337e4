"""Sums over the records of a data set; each record adds a vector of norm 1 at most.

Each record's vector depends on that record alone: either the analysis that the training
step uses shows that the graph keeps records apart, or the model is called on each record
by itself. A record whose vector is not finite adds a constant vector, and does not stop
the evaluation. All coordinates of the vectors are rounded towards zero to multiples of
2^-30, so that they can be added exactly.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_bandmf.keras.clipping.forward.inference import measured_rows
from tf_bandmf.keras.clipping.independence.map_examples import map_examples
from tf_bandmf.keras.clipping.tensors.errors import OF_THE_MACHINE
from tf_bandmf.keras.compat.keras_objects import all_layers, compile_loss
from tf_bandmf.keras.metrics.private_metrics import PrivateMetric, Rows
from tf_bandmf.sampling.identity import hash_rows

_GRID = 2.0**30


def sums_of(
    model: Any,
    x: Any,
    y: Any,
    metrics: Sequence[PrivateMetric],
    users: Any = None,
    batch_size: int = 256,
) -> tuple[np.ndarray, int, str]:
    """Returns the sum of the records' vectors, the number of units, and a digest.

    The vector of a record concatenates its vectors of all metrics.

    Args:
      model: private and built.
      x: inputs, arrays [N, ...]; or a `tf.data.Dataset` of batches `(x, y)`.
      y: targets, arrays [N, ...]; None with a data set.
      metrics: q metrics. For each metric, the vector of a record has a norm of at most
        1 / sqrt(q), so the concatenated vector has a norm of at most 1.
      users: None, or the user of each record, [N]: the weights of a user's records add up
        to 1.
      batch_size: batch size for arrays.

    Returns:
      Sums, float64 [M]; the number of units: records, or users; and a digest of the records
      and their weights.

    Raises:
      UnsupportedModelError: if the model changes a variable, or runs Python code.
      ValueError: if the data do not fit together, or there are none.
    """
    total = np.zeros([sum(metric.size for metric in metrics)], np.int64)
    count, function, digest = 0.0, None, hashlib.blake2b(digest_size=32)
    for batch in batches_of(x, y, batch_size, users):
        function = function or traced(model, batch[:2], metrics)
        for part in tf.nest.flatten(batch):
            digest.update(hash_rows(part).numpy().tobytes())
        total += _sum(function, batch, metrics)
        count += float(tf.reduce_sum(batch[2]))
    if not count:
        raise ValueError("x must contain at least one record, but found none.")
    return total / _GRID, round(count), digest.hexdigest()


def traced(model: Any, batch: Any, metrics: Sequence[PrivateMetric]) -> Any:
    """Returns a compiled function that sums `metrics` over a batch.

    The function of the last call is returned again, unless the metrics, the loss, the
    layers, the weight variables, or the shapes or dtypes of the batch have changed.
    """
    state = model._training
    specs = tf.nest.map_structure(lambda t: (t.shape[1:], t.dtype), batch)
    parts = [*metrics, compile_loss(model), *model.weights, *all_layers(model)]
    described = [metric.describe() for metric in metrics]
    key = str(specs), described, [*map(id, parts)]
    if state.evaluation is None or state.evaluation[0] != key:
        # The key contains the ids of `parts`. While `parts` are referenced, no other
        # object can have one of these ids.
        state.evaluation = (key, function_of(model, batch, metrics), parts)
    return state.evaluation[1]


def _sum(function: Any, batch: Any, metrics: Sequence[PrivateMetric]) -> np.ndarray:
    """Returns the sum of a batch; a record for which an error is raised counts as bad."""
    try:
        return np.asarray(function(*batch))
    except OF_THE_MACHINE:
        raise
    except tf.errors.OpError:
        pass
    size = len(batch[2])
    if size == 1:
        bad = [_bounded(m, tf.fill([1, m.size], math.nan), metrics) for m in metrics]
        return np.asarray(_on_grid(tf.concat(bad, axis=1)[0] * batch[2]))
    total = np.zeros([sum(metric.size for metric in metrics)], np.int64)
    for i in range(size):
        row = tf.nest.map_structure(lambda t, i=i: t[i : i + 1], batch)
        total += _sum(function, row, metrics)
    return total


def batches_of(
    x: Any, y: Any, batch_size: int, users: Any = None
) -> Iterator[tuple[Any, Any, tf.Tensor]]:
    """Yields batches (x, y, weights) of records.

    The weights of a user's records add up to 1; without users, each weight is 1.

    Raises:
      ValueError: if the data do not fit together.
    """
    if isinstance(x, tf.data.Dataset):
        if y is not None or users is not None:
            raise ValueError(
                "If x is a tf.data.Dataset, omit y and users. To use users, pass arrays."
            )
        for batch in x:
            if not (isinstance(batch, tuple) and len(batch) == 2):
                raise ValueError(
                    "Each batch of the dataset must be a tuple (x, y), without weights."
                )
            yield *batch, tf.ones([len(tf.nest.flatten(batch)[0])], tf.float64)
        return
    if x is None or y is None:
        raise ValueError("Pass arrays x and y, or a tf.data.Dataset of batches (x, y).")
    records = tf.data.Dataset.from_tensor_slices((x, y))
    weights = np.ones([len(records)])
    if users is not None:
        users = np.asarray(users)
        if users.shape != weights.shape:
            raise ValueError(
                f"users must contain one user for each of the {weights.size} records, "
                f"but found shape {users.shape}."
            )
        _, places, sizes = np.unique(users, return_inverse=True, return_counts=True)
        weights /= sizes[places]
    weighted = tf.data.Dataset.zip(records, tf.data.Dataset.from_tensor_slices(weights))
    for batch, of_batch in weighted.batch(batch_size):
        yield *batch, of_batch


def function_of(
    model: keras.Model, batch: Any, metrics: Sequence[PrivateMetric]
) -> Any:
    """Returns a compiled function that sums the weighted vectors of a batch of records.

    Its arguments are x, y and the weights of the records. No record affects another
    record's contribution to the sum.
    """
    specs = tf.nest.map_structure(
        lambda t: tf.TensorSpec([None, *t.shape[1:]], t.dtype), batch
    )
    signature = (*specs, tf.TensorSpec([None], tf.float64))

    def measure(y: Any, y_pred: Any, losses: Any) -> tf.Tensor:
        """Returns the vectors of all metrics, [B, M] float64; each row has a norm <= 1."""
        rows = Rows(y, y_pred, losses)
        bounded = [_bounded(m, m.vectors(rows), metrics) for m in metrics]
        return tf.concat(bounded, axis=1)

    def alone(x: Any, y: Any) -> tf.Tensor:
        def one(record: tuple[Any, Any]) -> list[tf.Tensor]:
            x, y = tf.nest.map_structure(lambda t: t[None], record)
            return [measured_rows(model, x, y, measure, alone=True)[0]]

        (rows,) = map_examples(one, (x, y), f"Model {model.name!r}")
        return rows

    def traced(rows_of: Callable[..., tf.Tensor]) -> Any:
        @functools.partial(tf.function, autograph=False, input_signature=signature)
        @tf.autograph.experimental.do_not_convert
        def summed(x: Any, y: Any, weights: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(_on_grid(rows_of(x, y) * weights[:, None]), axis=0)

        summed.get_concrete_function()
        return summed

    # The metrics are analyzed together with the model, because a custom metric may mix
    # rows, or fail if there is more than one row.
    with contextlib.suppress(Exception):
        return traced(lambda x, y: measured_rows(model, x, y, measure))
    return traced(alone)


def _bounded(
    metric: PrivateMetric, vectors: tf.Tensor, metrics: Sequence[PrivateMetric]
) -> tf.Tensor:
    """Clips a metric's vectors to norm 1, and divides them by sqrt(number of metrics).

    Before that, a vector that is not finite is replaced by a vector of norm
    `abs(metric.bad)`.

    Raises:
      ValueError: if `metric.bad` is not finite.
    """
    bad = float(metric.bad) / math.sqrt(metric.size)
    if not math.isfinite(bad):
        raise ValueError(
            f"The attribute `bad` of metric {metric.name!r} must be a finite number, found "
            f"{metric.bad}. Records whose results are not finite get this value."
        )
    vectors = tf.cast(tf.ensure_shape(vectors, [None, metric.size]), tf.float64)
    is_bad = tf.reduce_any(~tf.math.is_finite(vectors), axis=1, keepdims=True)
    vectors = tf.where(is_bad, tf.constant(bad, tf.float64), vectors)
    norms = tf.norm(vectors, axis=1, keepdims=True)
    return vectors / tf.maximum(norms, 1.0) / math.sqrt(len(metrics))


def _on_grid(vectors: tf.Tensor) -> tf.Tensor:
    """Returns vectors as int64 multiples of 2^-30, rounded towards zero."""
    # Because of rounding errors, a norm may exceed its bound by a factor of less than
    # 1 + 2^-40. The factor 1 - 2^-40 makes up for that.
    return tf.cast(vectors * (_GRID * (1.0 - 2.0**-40)), tf.int64)
