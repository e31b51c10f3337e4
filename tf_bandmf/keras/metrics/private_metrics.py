"""Private metrics, each computed from a noisy sum of the records' vectors.

Each record adds a vector of norm at most 1 to a sum, and the sum gets Gaussian noise.
Numbers in an interval are first mapped linearly to [-1, 1]. Compared with [0, 1], this
halves the noise of the metric. The sum gets the same noise for both intervals, because
they have the same largest absolute value, 1; but [-1, 1] is twice as long. (A record
that is left out adds 0, under zero-out adjacency.)
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_bandmf.accounting.checks import check_positive, whole_number
from tf_bandmf.keras.clipping.independence.map_examples import map_examples


@dataclasses.dataclass(frozen=True)
class Rows:
    """A batch of records, with the model's outputs and losses for them.

    Attributes:
      y: targets, tensors [B, ...].
      y_pred: the model's outputs, tensors [B, ...].
      losses: function that returns the compiled loss of each record, [B].
    """

    y: Any
    y_pred: Any
    losses: Callable[[], tf.Tensor]


class PrivateMetric(abc.ABC):
    """A metric that is computed from a noisy sum, to which each record adds a vector.

    Attributes:
      name: name in the results.
      size: number of coordinates of each record's vector.
      bad: a finite value. If a record's vector has a NaN or an infinity, each of its
        coordinates is set to `bad / sqrt(size)`.
    """

    name: str
    size: int = 1
    bad: float = 0.0

    @abc.abstractmethod
    def vectors(self, rows: Rows) -> tf.Tensor:
        """Returns the records' vectors, float [B, size]; the caller bounds their norms.

        Row i must be a function of record i alone. If this cannot be shown, the method is
        called with batches of one record. A vector that is not finite is replaced, as the
        attribute `bad` says.
        """

    @abc.abstractmethod
    def result(self, sums: np.ndarray, count: int, noise: float) -> tuple[float, float]:
        """Returns the metric, and the standard deviation of its noise.

        Args:
          sums: noisy sums of `vectors`, float64 [size].
          count: number of records, public.
          noise: standard deviation of each sum's noise.
        """

    def describe(self) -> str:
        """Describes what is summed over records; the noise's key depends on this text."""
        return f"{type(self).__name__} {vars(self)}"


class _Mean(PrivateMetric):
    """The mean over records of a number in [0, bound]."""

    bound: float = 1.0

    @abc.abstractmethod
    def values(self, rows: Rows) -> tf.Tensor:
        """Returns each record's number, [B]; the caller clips it to [0, bound]."""

    def vectors(self, rows: Rows) -> tf.Tensor:
        values = tf.cast(self.values(rows), tf.float64) / self.bound
        values = tf.where(
            tf.math.is_nan(values), values, tf.clip_by_value(values, 0, 1)
        )
        return 2.0 * values[:, None] - 1.0

    def result(self, sums: np.ndarray, count: int, noise: float) -> tuple[float, float]:
        half = 0.5 * self.bound
        mean = half * (1.0 + float(sums[0]) / count)
        return min(max(mean, 0.0), self.bound), half * noise / count


class PrivateAccuracy(_Mean):
    """The share of records that are classified correctly.

    If a record has one output per class, the prediction is the class with the largest
    output; the target may be a class number or one-hot. If a record has one output, the
    prediction is 1 if the output is above the threshold, else 0. For sequences, with
    outputs [records, positions, classes], the accuracy of a record is the mean over its
    positions. Outputs that are not finite count as wrong.

    Args:
      threshold: threshold for outputs of one number: 0.5 for probabilities, 0 for
        logits.
      name: name in the results.
    """

    bad = -1.0

    def __init__(self, threshold: float = 0.5, name: str = "accuracy") -> None:
        self.threshold, self.name = float(threshold), name

    def values(self, rows: Rows) -> tf.Tensor:
        y, y_pred = _only(rows.y, "targets"), _only(rows.y_pred, "outputs")
        if y_pred.shape.rank == 1 or y_pred.shape[-1] == 1:
            # There are two classes. The threshold serves as the output of the first, so
            # `argmax` predicts the second if its output is larger.
            rank = max(y_pred.shape.rank - 1, 1)
            y = tf.cast(_flat(y, rank), tf.float64) > 0.5
            second = tf.cast(_flat(y_pred, rank), tf.float64)
            first = tf.fill(tf.shape(second), tf.constant(self.threshold, tf.float64))
            y_pred = tf.stack([first, second], axis=-1)
        elif y.shape.rank == y_pred.shape.rank and y.shape[-1] != 1:
            y = tf.argmax(y, -1)
        y = tf.cast(_flat(y, y_pred.shape.rank - 1), tf.float64)
        is_right = tf.equal(y, tf.cast(tf.argmax(y_pred, -1), tf.float64))
        is_right &= tf.reduce_all(tf.math.is_finite(y_pred), axis=-1)
        right = tf.cast(is_right, tf.float64)
        return tf.reduce_mean(right, axis=list(range(1, right.shape.rank)))


class PrivateLoss(_Mean):
    """The mean of the compiled loss, with each record's loss clipped to [0, bound].

    A record whose loss is NaN or +inf counts as if its loss were `bound`.

    Args:
      bound: bound on the loss of a record, > 0; it must not depend on the data. A
        good value is about twice the loss of a model that knows nothing, such as
        `2 * log(classes)`.
      name: name in the results.
    """

    bad = 1.0

    def __init__(self, bound: float, name: str = "loss") -> None:
        check_positive("bound", bound)
        self.bound, self.name = float(bound), name

    def values(self, rows: Rows) -> tf.Tensor:
        return rows.losses()


class PrivateMean(_Mean):
    """The mean, over all records, of a function with values in [0, bound].

    Args:
      function: function of the target and the output of one record, without a batch
        axis, that returns a number. It is called for each record by itself, and uses
        operations of TensorFlow or Keras.
      name: name in the results.
      bound: bound on the function's values, > 0; they are clipped to [0, bound].
    """

    bad = -1.0

    def __init__(
        self, function: Callable[[Any, Any], Any], name: str, bound: float = 1.0
    ) -> None:
        if not callable(function):
            raise TypeError(f"PrivateMean needs a function, found {function!r}.")
        check_positive("bound", bound)
        self._function, self.name, self.bound = function, name, float(bound)

    def describe(self) -> str:
        return f"{type(self).__name__} {self.name} {self.bound}"

    def values(self, rows: Rows) -> tf.Tensor:
        def one(record: tuple[Any, Any]) -> list[tf.Tensor]:
            value = tf.cast(self._function(*record), tf.float64)
            return [tf.ensure_shape(value, [])]

        return map_examples(one, (rows.y, rows.y_pred), self.name)[0]


class PrivateAUC(PrivateMetric):
    """The area under the ROC curve, from a noisy histogram of scores for each class.

    A record adds 1 to one of 2 * bins counts, which belongs to its class (0 or 1) and
    to the bin of its score. Bins have equal widths in the logit of the score, between
    -limit and limit. Let bin i have the noisy counts p[i] of positives and n[i] of
    negatives. The numerator of the AUC is the sum of p[i] n[j] over i > j, plus half of
    the sum of p[i] n[i]; its denominator is (sum of p) * (sum of n). The AUC is 0.5 if
    the sum of p or of n is at most the standard deviation of its noise.

    Args:
      bins: number of bins of scores, >= 2: more bins mean a smaller rounding error, but
        more noise.
      from_logits: True if outputs are logits; otherwise, they are probabilities.
      limit: largest logit that the bins distinguish, > 0.
      name: name in the results.
    """

    def __init__(
        self,
        bins: int = 20,
        from_logits: bool = False,
        limit: float = 6.0,
        name: str = "auc",
    ) -> None:
        self.bins = whole_number("bins", bins, least=2)
        check_positive("limit", limit)
        self.from_logits, self.limit, self.name = bool(from_logits), float(limit), name
        self.size = 2 * self.bins

    def vectors(self, rows: Rows) -> tf.Tensor:
        y = _flat(_only(rows.y, "targets"), 1)
        score = _flat(_only(rows.y_pred, "outputs"), 1)
        score, y = tf.cast(score, tf.float64), tf.cast(y, tf.float64)
        is_good = tf.math.is_finite(score) & (tf.equal(y, 0.0) | tf.equal(y, 1.0))
        if not self.from_logits:
            is_good &= (score >= 0.0) & (score <= 1.0)
            score = tf.math.log(score) - tf.math.log1p(-score)
        place = tf.floor((score + self.limit) / (2.0 * self.limit) * self.bins)
        place = tf.clip_by_value(place, 0.0, self.bins - 1.0)
        place += self.bins * tf.where(y > 0.5, tf.ones_like(y), 0.0)
        # Records with an invalid target or score get a row of zeros.
        place = tf.where(is_good, place, -1.0)
        return tf.one_hot(tf.cast(place, tf.int32), self.size, dtype=tf.float64)

    def result(self, sums: np.ndarray, count: int, noise: float) -> tuple[float, float]:
        negative, positive = sums[: self.bins], sums[self.bins :]
        least = noise * math.sqrt(self.bins)
        if min(negative.sum(), positive.sum()) <= max(least, 1e-9):
            return 0.5, 0.5
        n, p = negative.sum(), positive.sum()
        below = np.cumsum(negative) - 0.5 * negative
        above = p - (np.cumsum(positive) - 0.5 * positive)
        area = float(below @ positive) / (n * p)
        of_positive = (below / n - area) / p
        of_negative = (above / p - area) / n
        spread = noise * float(np.linalg.norm([of_positive, of_negative]))
        return float(min(max(area, 0.0), 1.0)), spread


# All evaluations of "accuracy" use this object, so they are traced only once.
_ACCURACY = PrivateAccuracy()


def checked(metrics: Any) -> list[PrivateMetric]:
    """Checks the metrics of an evaluation, and returns them as a list.

    Raises:
      TypeError: if one of the metrics is not a private metric.
      ValueError: if there are none, or two have the same name.
    """
    several = keras.tree.flatten(metrics)
    several = [_ACCURACY if metric == "accuracy" else metric for metric in several]
    for metric in several:
        if not isinstance(metric, PrivateMetric):
            raise TypeError(
                f"metrics must be 'accuracy', or private metrics such as "
                f"tf_bandmf.keras.PrivateAUC(), but found {metric!r}."
            )
    names = [metric.name for metric in several]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"Pass metrics (at least one) with unique names, not {names}.")
    return several


def _only(value: Any, what: str) -> tf.Tensor:
    leaves = keras.tree.flatten(value)
    if len(leaves) != 1 or leaves[0] is None:
        raise ValueError(
            f"This metric needs one output and one target, but found {len(leaves)} {what}. "
            f"For other models, use PrivateMean(lambda y, y_pred: ..., name=...)."
        )
    return tf.convert_to_tensor(leaves[0])


def _flat(tensor: tf.Tensor, rank: int) -> tf.Tensor:
    """Drops an extra last axis of size 1, so that the tensor has `rank` axes."""
    if tensor.shape.rank == rank + 1 and tensor.shape[-1] == 1:
        tensor = tf.squeeze(tensor, -1)
    if tensor.shape.rank != rank:
        raise ValueError(
            f"y or the model's output has shape {tensor.shape}, but this metric needs "
            f"rank {rank}. For other shapes, use PrivateMean."
        )
    return tensor
