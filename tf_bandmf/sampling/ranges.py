"""Ranges that a caller declares: what lies outside of them is no example.

A declared range is public. So `fit` may hold it against the model before the first step,
and what a record outside of it does to a run is known: nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tf_bandmf.sampling.failing import with_weights
from tf_bandmf.sampling.sources import (
    INPUTS,
    TARGETS,
    ExampleSource,
    WrappedExamples,
)

# Lowest and highest value, both allowed.
Range = tuple[float, float]


class RangedExamples(WrappedExamples):
    """Examples; those outside declared ranges become rows of zeros with weight 0.

    Such an example takes part in the run, adds nothing to the sum, and does not end the
    run (invariants 5 and 18). NaN is in no range.

    Args:
      examples: what is read.
      ranges: "x" or "y" to a pair (lowest, highest), which holds for all of its
        numbers; or, if it has several parts, to a dictionary from their names, or a
        list in their order, of pairs. Parts that are not named may be anything.

    Attributes:
      ranges: as given.

    Raises:
      TypeError: if a range is invalid, or is of texts (when they are read).
      ValueError: if the lowest value is not below the highest, or a name is unknown
        (when they are read).
    """

    def __init__(self, examples: ExampleSource, ranges: Mapping[str, Any]) -> None:
        if not isinstance(ranges, Mapping) or not set(ranges) <= {INPUTS, TARGETS}:
            raise TypeError(
                f'ranges must map "x" or "y" to the lowest and the highest value, as in '
                f'{{"x": (0, 255), "y": (0, 9)}}, found {ranges!r}.'
            )
        super().__init__(examples)
        self.ranges = dict(ranges)
        for name, wanted in self.ranges.items():
            for _, one in _pairs(wanted):
                _check(name, one)

    def _changed(self, content: dict[str, Any], indices: tf.Tensor) -> dict[str, Any]:
        inside = tf.ones([tf.shape(indices)[0]], tf.bool)
        for key, wanted in self.ranges.items():
            if key not in content:
                raise ValueError(f"ranges: the examples have no {key!r}.")
            for name, (low, high) in _pairs(wanted):
                values = _values(content[key], name, key)
                inside &= tf.reduce_all((low <= values) & (values <= high), axis=1)

        def kept(tensor: tf.Tensor) -> tf.Tensor:
            mask = tf.reshape(inside, [-1, *([1] * (tensor.shape.rank - 1))])
            return tf.where(mask, tensor, tf.zeros_like(tensor))

        changed = {
            key: tf.nest.map_structure(kept, content[key])
            for key in (INPUTS, TARGETS)
            if key in content
        }
        return with_weights({**content, **changed}, inside)

    def update_digest(self, update: Callable[[Any], None]) -> None:
        super().update_digest(update)
        update(f"ranges {sorted(self.ranges.items())}".encode())


def _pairs(wanted: Any) -> list[tuple[Any, Range]]:
    """Names of parts, None for all of them, and their ranges."""
    if isinstance(wanted, Mapping):
        return list(wanted.items())
    if isinstance(wanted, (list, tuple)) and any(
        isinstance(one, (list, tuple)) for one in wanted
    ):
        return list(enumerate(wanted))
    return [(None, wanted)]


def _check(key: str, wanted: Any) -> None:
    try:
        low, high = map(float, wanted)
    except (TypeError, ValueError):
        raise TypeError(
            f"ranges: that of {key!r} must be the lowest and the highest value, found "
            f"{wanted!r}."
        ) from None
    if not low < high or math.isnan(low) or math.isnan(high):
        raise ValueError(
            f"ranges: in that of {key!r} the first value must be below the second, found "
            f"{wanted!r}."
        )


def _values(content: Any, name: Any, key: str) -> tf.Tensor:
    """The numbers of one part, or of all, float64, shape [N, any].

    In double precision every number of the usual types is itself.
    """
    if name is not None:
        try:
            content = content[name]
        except (KeyError, IndexError, TypeError):
            raise ValueError(f"ranges: {key!r} has no part {name!r}.") from None
    leaves = tf.nest.flatten(content)
    if any(leaf.dtype == tf.string for leaf in leaves):
        raise TypeError(f"ranges: {key!r} holds texts, which have no range.")
    rows = [tf.reshape(leaf, [tf.shape(leaf)[0], -1]) for leaf in leaves]
    return tf.concat([tf.cast(row, tf.float64) for row in rows], axis=1)
