"""A `Place` tells where the examples of a batch are in a tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np


class Place(NamedTuple):
    """The axis of examples in a tensor; its length is the batch size times `inner`.

    Attributes:
      axis: index of the axis, counted from the front.
      inner: number of consecutive rows per example.
    """

    axis: int
    inner: int = 1


ROWS = Place(0)


class CallShape(NamedTuple):
    """A call to a layer with trained weights, recorded when the model is analyzed.

    Attributes:
      layer: the called layer.
      batched: for each leaf of the arguments, True if its first axis is the batch axis.
        If all are False, all examples share the arguments.
    """

    layer: Any
    batched: tuple[bool, ...]


ADVICE = (
    "It mixes examples of the batch. Keep the batch as the first axis, and do not mix "
    "rows; normalize along other axes (`LayerNormalization`, `GroupNormalization`). If "
    "each row of a result depends on one example only, vouch for the layer's class with "
    "`tf_bandmf.keras.extending.register_per_example_layer`."
)


class Mixes(Exception):
    """Raised if a result combines examples of a batch, or they cannot be told apart.

    Args:
      reason: predicate of a sentence about the model, such as "mixes examples".
      advice: sentences that say what the user can change.
    """

    # Without this attribute, Keras would wrap the error in its own message about the
    # arguments of the call.
    _keras_call_info_injected = True

    def __init__(self, reason: str, advice: str = ADVICE) -> None:
        super().__init__(reason)
        self.advice = advice
        self.layer: Any = None


class CannotOpen(Exception):
    """Raised if it is unknown where an operation puts the axis of examples.

    Args:
      reason: noun phrase that names the operation and the problem.
    """

    _keras_call_info_injected = True


def same(places: Sequence[Place]) -> Place:
    """Returns the axis of examples, which all operands must share.

    Raises:
      Mixes: if the axes differ, since different examples would be combined.
    """
    if any(place != places[0] for place in places):
        raise Mixes("combines tensors whose examples lie along different axes")
    return places[0]


def arranged(
    place: Place, shape: Sequence[int], size: int, arrange: Callable[[Any], Any]
) -> tuple[Place, tuple[int, ...]]:
    """Returns the axis of examples after indexing or reshaping, and the new shape.

    Args:
      place: axis of examples in the tensor.
      shape: shape of the tensor.
      size: batch size.
      arrange: the operation as a function of an array. It is called on an array in
        which each entry is the index of the example to which it belongs.

    Raises:
      Mixes: if the result lacks some examples, or has rows with entries of several.
    """
    numbers = _numbers(place.axis, len(shape), size, place.inner)
    result = arrange(np.broadcast_to(numbers, shape))
    if not result.size:
        raise CannotOpen("an empty result")
    # Along axes with stride 0, all entries are the same, so one is enough.
    entries = result[tuple(slice(None if step else 1) for step in result.strides)]
    for axis, length in enumerate(entries.shape):
        inner, rest = divmod(length, size)
        if inner and not rest:
            expected = _numbers(axis, entries.ndim, size, inner)
            if np.all(entries == expected):
                return Place(axis, inner), result.shape
    raise Mixes(
        f"picks examples of a tensor of shape {list(shape)}, or does not keep them in "
        f"rows of their own: its result has the shape {list(result.shape)}"
    )


def _numbers(axis: int, rank: int, size: int, inner: int) -> Any:
    """Returns the index of the example of each row along an axis."""
    numbers = np.repeat(np.arange(size, dtype=np.uint8), inner)
    return numbers.reshape([-1 if each == axis else 1 for each in range(rank)])


def row_of(value: Any, place: Place, size: int) -> Any:
    """Returns a row of a constant that has equal rows for all examples.

    Raises:
      Mixes: if the rows differ, since results would depend on the position in the
        batch.
    """
    rows = np.moveaxis(np.asarray(value), place.axis, 0).reshape(size, -1)
    if not np.array_equal(rows, np.broadcast_to(rows[:1], rows.shape)):
        raise Mixes("uses numbers that depend on an example's place in the batch")
    return rows[0]
