"""Places: where the examples of a batch lie in a tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np


class Place(NamedTuple):
    """The axis along which examples lie; its length is the batch size times `inner`.

    Attributes:
      axis: index of the axis, counted from the front.
      inner: number of consecutive rows per example.
    """

    axis: int
    inner: int = 1


ROWS = Place(0)


class CallShape(NamedTuple):
    """One call of a tapped layer, as recorded by a walk.

    Attributes:
      layer: the called layer.
      batched: for each leaf of the arguments, True if its first axis is the batch axis.
        If all are False, all examples share the arguments.
    """

    layer: Any
    batched: tuple[bool, ...]


ADVICE = (
    "It mixes examples of the batch. Keep the batch as the first axis and let no operation "
    "cross it; normalize along other axes (`LayerNormalization`, `GroupNormalization`). If "
    "each row of a layer depends on one example all the same, vouch for the layer's class "
    "with `tf_bandmf.keras.extending.register_per_example_layer`."
)


class Mixes(Exception):
    """Raised if examples of a batch meet, or cannot be told apart.

    Args:
      reason: predicate of a sentence about the model, such as "mixes examples".
      advice: a way out.
    """

    # Without this attribute, Keras would wrap the error in its own message about the
    # arguments of the call.
    _keras_call_info_injected = True

    def __init__(self, reason: str, advice: str = ADVICE) -> None:
        super().__init__(reason)
        self.advice = advice
        self.layer: Any = None


class CannotOpen(Exception):
    """Raised if it is unknown where an operation puts examples.

    Args:
      reason: name of the operation that cannot be opened, and the reason.
    """

    _keras_call_info_injected = True


def same(places: Sequence[Place]) -> Place:
    """Returns the common place of operands.

    Raises:
      Mixes: if places differ, since examples would meet.
    """
    if any(place != places[0] for place in places):
        raise Mixes("combines tensors whose examples lie along different axes")
    return places[0]


def arranged(
    place: Place, shape: Sequence[int], size: int, arrange: Callable[[Any], Any]
) -> tuple[Place, tuple[int, ...]]:
    """Returns the place after indexing or a reshape, and the shape of its result.

    Args:
      place: place of the examples in the tensor.
      shape: shape of the tensor.
      size: batch size.
      arrange: the operation as a function of an array. It is tried on an array in which
        each entry is the number of its example.

    Raises:
      Mixes: if the result lacks some examples, or a row has parts of several examples.
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
    """Returns the index of its example for each row along an axis."""
    numbers = np.repeat(np.arange(size, dtype=np.uint8), inner)
    return numbers.reshape([-1 if each == axis else 1 for each in range(rank)])


def row_of(value: Any, place: Place, size: int) -> Any:
    """Returns the row of one example from a constant that has a row for each.

    Raises:
      Mixes: if the rows differ, since results would depend on the position in the
        batch.
    """
    rows = np.moveaxis(np.asarray(value), place.axis, 0).reshape(size, -1)
    if not np.array_equal(rows, np.broadcast_to(rows[:1], rows.shape)):
        raise Mixes("uses numbers that depend on an example's place in the batch")
    return rows[0]
