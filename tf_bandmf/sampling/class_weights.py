"""Weights of classes, which are weights of examples: a function of each one's target."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tf_bandmf.sampling.sources import SAMPLE_WEIGHT, SHARE, TARGETS


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


class ClassWeights:
    """Examples contribute in proportion to the weight of their class.

    Weights are divided by the largest one, if that is above 1: a weight above 1 would be
    clipped away. An example's loss is multiplied by its weight w, and its gradient is
    clipped to w times the clip norm: its contribution is w times the one it would have
    without weights. The guarantee is the same. The price: classes of small weights say
    less, beside the same noise.

    Args:
      class_weight: class number to weight, finite and >= 0. A class that is not there
        has weight 1. Targets are class numbers of shape [N] or [N, 1], or one-hot, whose
        largest entry counts. Sample weights, shape [N], are multiplied by.

    Raises:
      ValueError: if a weight is not valid, or the examples have no such targets (when
        they are read).
    """

    def __init__(self, class_weight: Mapping[int, float]) -> None:
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
        pairs = sorted((int(name), float(w)) for name, w in class_weight.items())
        if not all(math.isfinite(weight) and weight >= 0.0 for _, weight in pairs):
            raise ValueError(
                f"class_weight must be finite and >= 0, found {dict(class_weight)!r}."
            )
        self._classes = np.array([name for name, _ in pairs], np.int64)
        # The last one is that of all others.
        weights = np.array([*(weight for _, weight in pairs), 1.0], np.float32)
        self._weights = weights / weights.max()
        self.digest = (
            b"shares of classes" + self._classes.tobytes() + self._weights.tobytes()
        )

    def __call__(self, content: dict[str, Any], seeds: Any) -> dict[str, Any]:
        """The rows, with their weights and shares."""
        targets: Any = content.get(TARGETS)
        own: Any = content.get(SAMPLE_WEIGHT)
        rank = targets.shape.rank if tf.is_tensor(targets) else None
        if rank not in (1, 2):
            raise ValueError(
                "class_weight needs class numbers or one-hot targets, one tensor y of "
                "shape [N] or [N, classes]. Give sample_weight to plan.batches instead."
            )
        if own is not None and not (tf.is_tensor(own) and own.shape.rank == 1):
            raise ValueError(
                "class_weight goes with sample weights of shape [N] only. Multiply "
                "them yourself, and give the product as sample_weight."
            )
        if rank == 2 and targets.shape[1] != 1:
            classes = tf.argmax(targets, axis=1)
        else:
            classes = tf.reshape(targets, [-1])
            if classes.dtype.is_floating:
                classes = tf.round(classes)
            classes = tf.cast(classes, tf.int64)
        same = tf.cast(tf.equal(classes[:, None], self._classes[None]), tf.float32)
        others = 1.0 - tf.reduce_sum(same, axis=1, keepdims=True)
        share = tf.linalg.matvec(tf.concat([same, others], axis=1), self._weights)
        weight = share if own is None else tf.cast(own, tf.float32) * share
        return {**content, SAMPLE_WEIGHT: weight, SHARE: share}
