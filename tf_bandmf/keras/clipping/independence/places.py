"""A `Place` tells where the examples of a batch are in a tensor."""

from __future__ import annotations

from collections.abc import Sequence
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
    "Such code mixes examples of the batch. Keep the batch as the first axis, and do not "
    "mix rows. Normalize along other axes (`LayerNormalization`, `GroupNormalization`). "
    "If each row of a result depends on one example only, register the layer's class with "
    "`tf_bandmf.keras.extending.register_per_example_layer`."
)


class Mixes(Exception):
    """Raised if examples of a batch are combined, or if they cannot be told apart.

    Args:
      reason: a clause, or the end of a clause that begins with an operation's name,
        such as "sums over the batch axis".
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
      reason: sentence that describes the problem.
    """

    _keras_call_info_injected = True


def same(places: Sequence[Place]) -> Place:
    """Returns the axis of examples, which all operands must share.

    Raises:
      Mixes: if the axes differ, since different examples would be combined.
    """
    if any(place != places[0] for place in places):
        raise Mixes("combines tensors that have different batch axes")
    return places[0]


def row_of(value: Any, place: Place, size: int) -> Any:
    """Returns one example's part of a constant; all examples must have equal parts.

    Raises:
      Mixes: if the parts of two examples differ, since results would depend on the
        position in the batch.
    """
    rows = np.moveaxis(np.asarray(value), place.axis, 0).reshape(size, -1)
    if not np.array_equal(rows, np.broadcast_to(rows[:1], rows.shape)):
        raise Mixes("uses numbers that depend on an example's place in the batch")
    return rows[0]
