"""Weights of classes, which are weights of examples: a function of each one's target."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tf_bandmf.sampling.sources import (
    OF_CLASS_WEIGHTS,
    SAMPLE_WEIGHT,
    SHARE,
    TARGETS,
    ExampleSource,
    WrappedExamples,
)


def warn_of_example_weights(sample_weight: Any) -> None:
    """Of one weight for each example, which clipping undoes."""
    if getattr(sample_weight, "ndim", None) != 1:
        return
    warnings.warn(
        "sample_weight has one weight for each example. It multiplies losses before "
        "gradients are clipped, so an example whose gradient is still longer than the clip "
        "norm contributes with weight 0.5 what it does with 1; under clipping='automatic' "
        "nearly all do. For weights of classes give fit class_weight, which acts on what "
        "is clipped. Weights within an example, of its pixels or tokens, act as in Keras.",
        stacklevel=3,
    )


class ClassWeighted(WrappedExamples):
    """Examples that contribute in proportion to the weight of their class.

    Weights are divided by the largest one, if that is above 1: a weight above 1 would be
    clipped away. An example's loss is multiplied by its weight w, and its gradient is
    clipped to w times the clip norm: its contribution is w times the one it would have
    without weights. The guarantee is the same. The price: classes of small weights say
    less, beside the same noise.

    Args:
      examples: with targets: class numbers of shape [N] or [N, 1], or one-hot, whose
        largest entry counts. Their own sample weights, shape [N], are multiplied by.
      class_weight: class number to weight, finite and >= 0. A class that is not there
        has weight 1.

    Raises:
      ValueError: if a weight is not valid, or the examples have no such targets (when
        they are read).
    """

    def __init__(
        self, examples: ExampleSource, class_weight: Mapping[int, float]
    ) -> None:
        if not isinstance(class_weight, Mapping) or not class_weight:
            raise ValueError(
                f"class_weight must map class numbers to weights, found {class_weight!r}."
            )
        if any(isinstance(weight, Mapping) for weight in class_weight.values()):
            raise ValueError(
                f"class_weight is that of a model with one output, found weights by "
                f"output, for {', '.join(map(repr, class_weight))}. Give weights of "
                f"examples instead, to plan.batches(x, y, sample_weight={{output: "
                f"weights_of_its_classes[y[output]], ...}}), an array for each output."
            )
        super().__init__(examples)
        self.remarks = tuple(dict.fromkeys((*self.remarks, OF_CLASS_WEIGHTS)))
        pairs = sorted((int(name), float(w)) for name, w in class_weight.items())
        if not all(math.isfinite(weight) and weight >= 0.0 for _, weight in pairs):
            raise ValueError(
                f"class_weight must be finite and >= 0, found {dict(class_weight)!r}."
            )
        self._classes = np.array([name for name, _ in pairs], np.int64)
        weights = np.array([weight for _, weight in pairs], np.float32)
        largest = max(1.0, float(weights.max()))
        self._weights, self._others = weights / largest, np.float32(1.0 / largest)

    def _changed(self, content: dict[str, Any], indices: tf.Tensor) -> dict[str, Any]:
        targets = content.get(TARGETS)
        if (
            targets is None
            or not tf.is_tensor(targets)
            or targets.shape.rank not in (1, 2)
        ):
            raise ValueError(
                "class_weight needs class numbers or one-hot targets, one tensor y of "
                "shape [N] or [N, classes]. Give sample_weight to plan.batches instead."
            )
        if targets.shape.rank == 2 and targets.shape[1] != 1:
            classes = tf.argmax(targets, axis=1)
        else:
            classes = tf.reshape(targets, [-1])
            if classes.dtype.is_floating:
                classes = tf.round(classes)
            classes = tf.cast(classes, tf.int64)
        same = tf.equal(classes[:, None], self._classes[None])
        given = tf.linalg.matvec(tf.cast(same, tf.float32), self._weights)
        weight = tf.where(tf.reduce_any(same, axis=1), given, self._others)
        share, own = weight, content.get(SAMPLE_WEIGHT)
        if own is not None:
            if not tf.is_tensor(own) or own.shape.rank != 1:
                raise ValueError(
                    "class_weight goes with sample weights of shape [N] only. Multiply "
                    "them yourself, and give the product as sample_weight."
                )
            weight = tf.cast(own, tf.float32) * weight
        return {**content, SAMPLE_WEIGHT: weight, SHARE: share}

    def update_digest(self, update: Callable[[Any], None]) -> None:
        super().update_digest(update)
        weights = np.append(self._weights, self._others)
        update(b"shares of classes" + self._classes.tobytes() + weights.tobytes())
