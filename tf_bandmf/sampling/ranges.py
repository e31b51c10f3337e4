"""Ranges that a caller declares: what lies outside of them is no example.

A declared range is public. So `fit` may hold it against the model before the first step,
and what a record outside of it does to a run is known: nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_bandmf.sampling.sources import INPUTS, TARGETS, with_weights, zeros_unless


class Ranges:
    """Makes rows outside declared ranges rows of zeros with weight 0.

    Such an example takes part in the run, adds nothing to the sum, and does not end the
    run (invariants 5 and 18). NaN is in no range.

    Args:
      ranges: "x" or "y" to a pair (lowest, highest), which holds for all of its
        numbers; or, if it has several parts, to a dictionary from their names, or a
        list in their order, of pairs. Parts that are not named may be anything.

    Attributes:
      declared: as given.

    Raises:
      TypeError: if a range is invalid, or is of texts (when they are read).
      ValueError: if the lowest value is not below the highest, or a name is unknown
        (when they are read).
    """

    def __init__(self, ranges: Mapping[str, Any]) -> None:
        if not isinstance(ranges, Mapping) or not set(ranges) <= {INPUTS, TARGETS}:
            raise TypeError(
                f'ranges must map "x" or "y" to the lowest and the highest value, as in '
                f'{{"x": (0, 255), "y": (0, 9)}}, found {ranges!r}.'
            )
        self.declared = dict(ranges)
        self.digest = f"ranges {sorted(ranges.items())}".encode()
        for name, _, wanted in self._parts():
            try:
                low, high = map(float, wanted)
            except (TypeError, ValueError):
                raise TypeError(
                    f"ranges: that of {name!r} must be the lowest and the highest value, "
                    f"found {wanted!r}."
                ) from None
            if not low < high:
                raise ValueError(
                    f"ranges: in that of {name!r} the first value must be below the "
                    f"second, found {wanted!r}."
                )

    def _parts(self) -> list[tuple[str, Any, Any]]:
        """Keys, names of parts, None for all of them, and their ranges."""
        parts: list[tuple[str, Any, Any]] = []
        for key, wanted in self.declared.items():
            is_list = isinstance(wanted, (list, tuple))
            if isinstance(wanted, Mapping):
                parts += [(key, *pair) for pair in wanted.items()]
            elif is_list and any(isinstance(one, (list, tuple)) for one in wanted):
                parts += [(key, *pair) for pair in enumerate(wanted)]
            else:
                parts.append((key, None, wanted))
        return parts

    def __call__(self, content: dict[str, Any], seeds: Any) -> dict[str, Any]:
        """The rows, with zeros for those that are outside."""
        inside = tf.constant(True)
        for key, name, (low, high) in self._parts():
            values = _values(content, key, name)
            inside &= tf.reduce_all((low <= values) & (values <= high), axis=1)
        keys = [key for key in (INPUTS, TARGETS) if key in content]
        kept = zeros_unless(inside, {key: content[key] for key in keys})
        return with_weights({**content, **kept}, inside)


def _values(content: dict[str, Any], key: str, name: Any) -> tf.Tensor:
    """The numbers of one part, or of all, float64, shape [N, any].

    In double precision every number of the usual types is itself.
    """
    try:
        part = content[key] if name is None else content[key][name]
    except (KeyError, IndexError, TypeError):
        said = "" if name is None else f" part {name!r} of"
        raise ValueError(f"ranges: the examples have no{said} {key!r}.") from None
    leaves = tf.nest.flatten(part)
    if any(leaf.dtype == tf.string for leaf in leaves):
        raise TypeError(f"ranges: {key!r} holds texts, which have no range.")
    rows = [tf.reshape(leaf, [tf.shape(leaf)[0], -1]) for leaf in leaves]
    return tf.concat([tf.cast(row, tf.float64) for row in rows], axis=1)
