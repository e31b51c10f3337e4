"""Changes to examples by declared ranges and by class weights.

A declared range is public: `fit` may compare it with the model before the first step,
and an example outside the range contributes nothing to a run. A class weight scales the
contribution of an example, and depends only on the example's target.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tf_bandmf.sampling.identity import INPUTS, SAMPLE_WEIGHT, SHARE, TARGETS
from tf_bandmf.sampling.sources import with_weights, zeros_unless


class Ranges:
    """Replaces rows outside declared ranges by all-zero rows with weight 0.

    A replaced example is still drawn, but adds nothing to the sum of gradients, and
    never stops the run with an error (invariants 5 and 18 in `docs/guarantee.md`). NaN
    is outside every range.

    Args:
      ranges: dictionary from "x" or "y" to a pair (minimum, maximum) for all numbers of
        x or y. If x or y consists of several tensors, the value is a dictionary from
        their names to pairs, or a list of pairs in the order of the tensors. Tensors
        without a pair may have any values.

    Raises:
      TypeError: if a range is invalid; or, when rows are read, if a tensor with a range
        contains strings.
      ValueError: if a minimum is not below its maximum; or, when rows are read, if a
        tensor's name is unknown.
    """

    def __init__(self, ranges: Mapping[str, Any]) -> None:
        if not isinstance(ranges, Mapping) or not set(ranges) <= {INPUTS, TARGETS}:
            raise TypeError(
                f'ranges must be a dictionary from "x" or "y" to (minimum, maximum), such '
                f'as {{"x": (0, 255), "y": (0, 9)}}, found {ranges!r}.'
            )
        self.digest = f"ranges {sorted(ranges.items())}".encode()
        # Each tuple consists of "x" or "y", a tensor's name (None for all tensors), the
        # minimum and the maximum.
        self._limits: list[tuple[str, Any, float, float]] = []
        for key, given in ranges.items():
            pairs: Any = [(None, given)]
            if isinstance(given, Mapping):
                pairs = given.items()
            elif isinstance(given, (list, tuple)):
                is_of_parts = any(isinstance(one, (list, tuple)) for one in given)
                pairs = enumerate(given) if is_of_parts else pairs
            for name, wanted in pairs:
                try:
                    low, high = map(float, wanted)
                except (TypeError, ValueError):
                    raise TypeError(
                        f"ranges: the range of {key!r} must be a pair of numbers "
                        f"(minimum, maximum), found {wanted!r}."
                    ) from None
                if not low < high:
                    raise ValueError(
                        f"ranges: the minimum for {key!r} must be below the maximum, "
                        f"found {wanted!r}."
                    )
                self._limits.append((key, name, low, high))

    def __call__(self, content: dict[str, Any], seeds: Any) -> dict[str, Any]:
        """Returns the rows, with zeros and weight 0 for rows outside the ranges."""
        inside = tf.constant(True)
        for key, name, low, high in self._limits:
            values = _values(content, key, name)
            inside &= tf.reduce_all((low <= values) & (values <= high), axis=1)
        kept = {key: content[key] for key in (INPUTS, TARGETS) if key in content}
        return with_weights({**content, **zeros_unless(inside, kept)}, inside)


def _values(content: dict[str, Any], key: str, name: Any) -> tf.Tensor:
    """Returns the numbers of x or y in each row as float64, shape [N, any].

    float64 represents the numbers of all common dtypes exactly.

    Args:
      content: dictionary with x, and possibly y, of N rows.
      key: "x" or "y".
      name: name or index of one tensor in x or y, or None for all tensors.
    """
    try:
        part = content[key] if name is None else content[key][name]
    except (KeyError, IndexError, TypeError):
        said = "" if name is None else f" tensor {name!r} in"
        raise ValueError(f"Examples have no{said} {key!r}. Omit this range.") from None
    leaves = tf.nest.flatten(part)
    if any(leaf.dtype == tf.string for leaf in leaves):
        raise TypeError(f"{key!r} contains strings, not numbers. Omit it from ranges.")
    rows = [tf.reshape(leaf, [tf.shape(leaf)[0], -1]) for leaf in leaves]
    return tf.concat([tf.cast(row, tf.float64) for row in rows], axis=1)


def warn_of_example_weights(sample_weight: Any) -> None:
    """Warns about per-example sample weights, which clipping makes largely ineffective."""
    if getattr(sample_weight, "ndim", None) == 1:
        warnings.warn(
            "sample_weight has one weight for each example. It multiplies losses before "
            "gradients are clipped, so an example whose gradient is still longer than the "
            "clip norm contributes as much with weight 0.5 as with weight 1; under "
            "clipping='automatic' this holds for nearly all examples. To weight classes, "
            "pass class_weight to fit, which scales the clipped gradients. Weights within "
            "an example (of its pixels or tokens) act as in Keras.",
            stacklevel=3,
        )


class ClassWeights:
    """Scales the contribution of each example by the weight of its class.

    If the largest weight is above 1, all weights are divided by it, because no example
    may contribute more than the clip norm. An example's loss is multiplied by its
    weight w, and its gradient is clipped to w times the clip norm, so its contribution
    is w times the contribution without weights. The guarantee is the same. The cost is
    a smaller signal: classes with small weights contribute less while the noise stays
    the same.

    Args:
      class_weight: dictionary from class numbers to weights, finite and >= 0. A missing
        class has weight 1. Targets are class numbers of shape [N] or [N, 1], or one-hot
        vectors, whose largest entry indicates the class. Sample weights, shape [N], are
        multiplied by these weights.

    Raises:
      ValueError: if a weight is invalid; or, when rows are read, if the targets have
        another form.
    """

    def __init__(self, class_weight: Mapping[int, float]) -> None:
        if not isinstance(class_weight, Mapping) or not class_weight:
            raise ValueError(
                f"class_weight must map class numbers to weights, found {class_weight!r}."
            )
        if any(isinstance(weight, Mapping) for weight in class_weight.values()):
            raise ValueError(
                f"class_weight supports only models with one output, found weights for "
                f"the outputs {', '.join(map(repr, class_weight))}. Instead, pass one "
                f"array for each output, with the weight of each example's class, to "
                f"plan.batches(x, y, sample_weight={{output: array, ...}})."
            )
        pairs = sorted((int(name), float(w)) for name, w in class_weight.items())
        if not all(math.isfinite(weight) and weight >= 0.0 for _, weight in pairs):
            raise ValueError(
                f"class_weight must have finite weights >= 0, found {dict(class_weight)!r}."
            )
        self._classes = np.array([name for name, _ in pairs], np.int64)
        # The last weight, 1, applies to all classes without a weight.
        weights = np.array([*(weight for _, weight in pairs), 1.0], np.float32)
        self._weights = weights / weights.max()
        self.digest = (
            b"shares of classes" + self._classes.tobytes() + self._weights.tobytes()
        )

    def __call__(self, content: dict[str, Any], seeds: Any) -> dict[str, Any]:
        """Returns the rows with the weights that multiply losses and clip norms.

        The entry `SHARE` is the weight of the row's class, and multiplies the clip
        norm. The entry `SAMPLE_WEIGHT` is the product of this weight and the row's own
        sample weight, if any, and multiplies the loss.
        """
        targets: Any = content.get(TARGETS)
        given: Any = content.get(SAMPLE_WEIGHT)
        rank = targets.shape.rank if tf.is_tensor(targets) else None
        if rank not in (1, 2):
            raise ValueError(
                "With class_weight, y must be class numbers (shape [N]) or one-hot targets "
                "(shape [N, classes]). Otherwise, pass sample_weight to plan.batches."
            )
        if given is not None and not (tf.is_tensor(given) and given.shape.rank == 1):
            raise ValueError(
                "With class_weight, sample_weight must be one tensor of shape [N]. "
                "Otherwise, multiply it by class weights yourself, and omit class_weight."
            )
        if rank == 2 and targets.shape[1] != 1:
            classes = tf.argmax(targets, axis=1)
        else:
            classes = tf.reshape(targets, [-1])
            if classes.dtype.is_floating:
                classes = tf.round(classes)
            classes = tf.cast(classes, tf.int64)
        # `argmax` finds the first matching class. The appended last column matches all
        # targets.
        fits = tf.cast(classes[:, None] == self._classes, tf.int32)
        fits = tf.pad(fits, [[0, 0], [0, 1]], constant_values=1)
        share = tf.gather(self._weights, tf.argmax(fits, axis=1))
        weight = share if given is None else tf.cast(given, tf.float32) * share
        return {**content, SAMPLE_WEIGHT: weight, SHARE: share}
