"""Where the examples of a batch are in a tensor, and how operations move them."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class Place(NamedTuple):
    """The axis of examples: of length `outer` times the batch size times `inner`.

    Attributes:
      axis: counted from the front.
      outer: how often the whole batch stands one after the other.
      inner: how many rows each example has, one after the other.
    """

    axis: int
    outer: int = 1
    inner: int = 1


ROWS = Place(0)


class Spread(enum.Enum):
    """How an output without a batch dimension is repeated for every example."""

    NONE = "none"
    NEW_AXIS = "new axis"
    REPEAT = "repeat"


@dataclasses.dataclass
class CallShape:
    """What is known about one call of a layer that is tapped.

    Attributes:
      layer: the layer called.
      batched: for each leaf of the arguments, whether its first dimension is the batch.
      spread: how to repeat the output if it is shared by all examples.
    """

    layer: Any
    batched: tuple[bool, ...]
    spread: Spread = Spread.NONE


class Mixes(Exception):
    """Examples of a batch meet, which is shown, or cannot be told apart.

    Args:
      reason: what does it, as the predicate of a sentence.
      advice: what to do instead, if it is not the usual.
    """

    # Keras would wrap it into a message about arguments.
    _keras_call_info_injected = True

    def __init__(self, reason: str, advice: str | None = None) -> None:
        super().__init__(reason)
        self.reason, self.advice = reason, advice
        self.layer: Any = None


class CannotOpen(Exception):
    """It is not known where an operation puts examples.

    Args:
      reason: the operation, and why.
    """

    _keras_call_info_injected = True


def same(places: Sequence[Place]) -> Place:
    """The place that operands have in common.

    Raises:
      Mixes: if they have none: then each example meets the others.
    """
    if any(place != places[0] for place in places):
        raise Mixes("combines tensors whose examples lie along different axes")
    return places[0]


def axes_of(axis: Any, rank: int) -> set[int]:
    """Axes that an attribute names; None is all."""
    chosen = range(rank) if axis is None else np.atleast_1d(axis)
    return {int(one) % rank if rank else 0 for one in chosen}


def reshaped(
    place: Place, shape: Sequence[int], new: Sequence[int], size: int
) -> Place:
    """Where a reshape puts examples.

    Raises:
      Mixes: if it puts parts of several examples side by side.
    """
    before = math.prod(shape[: place.axis]) * place.outer
    after = math.prod(shape[place.axis + 1 :]) * place.inner
    front = 1
    for axis, length in enumerate(new):
        behind = math.prod(new[axis + 1 :])
        if front and behind and length % size == 0:
            outer, left = divmod(before, front)
            inner, over = divmod(after, behind)
            if left == over == 0 and outer * size * inner == length:
                return Place(axis, outer, inner)
        front *= length
    raise Mixes(f"reshapes {_shape(shape)} into {_shape(new)}, across examples")


def viewed(place: Place, shape: Sequence[int], size: int, view: Any) -> tuple[Any, Any]:
    """Where indexing or moving axes puts examples, and the shape of its result.

    Args:
      place: of the examples in the tensor.
      shape: of the tensor.
      size: of the batch.
      view: function of an array that returns a view of it.

    Raises:
      Mixes: if it picks examples.
    """
    length = shape[place.axis]
    along = [length if axis == place.axis else 1 for axis in range(len(shape))]
    rows = np.arange(length).reshape(along)
    result = view(np.broadcast_to(rows, shape))
    axes = [axis for axis, stride in enumerate(result.strides) if stride]
    axes = [axis for axis in axes if result.shape[axis] > 1]
    unit = size * place.inner
    if len(axes) == 1 and result.size:
        (axis,) = axes
        picked = np.moveaxis(result, axis, 0).reshape(result.shape[axis], -1)[:, 0]
        outer, left = divmod(len(picked), unit)
        if not left and not picked[0] % unit and np.all(np.diff(picked) == 1):
            return Place(axis, outer, place.inner), result.shape
    elif not result.size:
        raise CannotOpen("an empty result")
    raise Mixes(f"picks examples out of a tensor of shape {_shape(shape)}")


def constant_place(value: Any, size: int) -> tuple[Place, Any] | None:
    """Where a constant has as many rows as there are examples, and one of its rows.

    Raises:
      Mixes: if the rows differ: then they say where in the batch an example is.
    """
    axes = [axis for axis, n in enumerate(value.shape) if n and n % size == 0]
    if not axes:
        return None
    value = np.asarray(value)
    for axis in axes:
        count = value.shape[axis] // size
        for outer in range(1, count + 1):
            if count % outer:
                continue
            inner = count // outer
            parts = (outer, size, inner)
            split = value.reshape(value.shape[:axis] + parts + value.shape[axis + 1 :])
            rows = np.moveaxis(split, axis + 1, 0)
            if np.array_equal(rows, np.broadcast_to(rows[:1], rows.shape)):
                return Place(axis, outer, inner), rows[0]
    raise Mixes("uses numbers that say which place in the batch an example has")


def _shape(shape: Sequence[int]) -> str:
    return f"[{', '.join(str(length) for length in shape)}]"
