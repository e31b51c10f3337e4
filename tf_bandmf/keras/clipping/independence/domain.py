"""What the analysis knows about a tensor: its abstract value.

The question is which examples of the batch a tensor's entries may depend on. A value is
one of

* INDEPENDENT: a function of weights, constants and the step's random numbers alone, and
  not of how many examples there are.
* PER_EXAMPLE: has an axis of B * m rows, of which each belongs to one example, in order
  (m rows for the first example, then m for the second, ...), and depends on that
  example alone. Entries of other rows may not have touched it.
* SIZE: numbers computed from the batch size B, for shapes.
* INDEX: the positions 0, ..., B - 1 of the examples in the batch.
* LIST: a TensorList of such tensors.
* BLOCKS: as PER_EXAMPLE, along axis 0, but one row of each example, then another one of
  each, and so on: so a dilated convolution cuts its images apart.

Everything else is an error: there is no value for "depends on several examples".

A stored value has its whole symbolic shape (`evaluation`), in which no axis but that of
the examples has their number in it.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from tf_bandmf.keras.clipping.independence.sizes import Content, Dim


class Kind(enum.Enum):
    """Kinds of abstract values; see the module."""

    INDEPENDENT = "independent"
    PER_EXAMPLE = "per example"
    SIZE = "size"
    INDEX = "index"
    LIST = "list"
    BLOCKS = "blocks"


@dataclasses.dataclass(frozen=True)
class Value:
    """An abstract value.

    Attributes:
      kind: what the tensor may depend on.
      axis: of PER_EXAMPLE and INDEX: the axis of the batch, not negative.
      rows: size of that axis, a multiple of B; of BLOCKS, of axis 0. Of LIST: B if entry i
        is example i's; it has an element when all are written.
      content: of an integer scalar or vector: its entries, where known.
      element: of LIST: the value of all its elements; None while it is empty. Of BLOCKS:
        the value that was cut.
      fresh: of INDEPENDENT: whether each of its entries is drawn anew at each step.
      state: of INDEPENDENT: whether it is what a generator's counter and key were: as a
        whole it is another one at each step.
      shape: the symbolic shape. What a transfer function gives is checked where the value
        is stored, what it does not give is found there.
    """

    kind: Kind
    axis: int = 0
    rows: Dim | None = None
    content: Content = None
    element: Value | None = None
    fresh: bool = False
    state: bool = False
    shape: tuple[Dim, ...] | None = dataclasses.field(default=None, compare=False)

    @property
    def independent(self) -> bool:
        """Whether the value is INDEPENDENT."""
        return self.kind is Kind.INDEPENDENT

    @property
    def per_example(self) -> bool:
        """Whether the value is PER_EXAMPLE."""
        return self.kind is Kind.PER_EXAMPLE

    @property
    def one_row_each(self) -> bool:
        """Whether row i is example i, along axis 0."""
        return (
            self.per_example
            and self.axis == 0
            and self.rows is not None
            and self.rows.is_batch
        )


INDEPENDENT = Value(Kind.INDEPENDENT)


def per_example(axis: int, rows: Dim, shape: tuple[Dim, ...] | None = None) -> Value:
    """A PER_EXAMPLE value with the batch on an axis of so many rows."""
    return Value(Kind.PER_EXAMPLE, axis, rows, shape=shape)


class NotIndependent(Exception):
    """An operation cannot be shown to keep examples apart.

    Args:
      reason: what it does, or why nothing is known.
      operation: the operation of the graph, if it is one.
      mixes: whether it combines examples for certain.
    """

    def __init__(
        self, reason: str, operation: Any = None, *, mixes: bool = False
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.operation = operation
        self.mixes = mixes


def mixes(reason: str) -> NotIndependent:
    """The error of an operation that combines examples."""
    return NotIndependent(reason, mixes=True)


def join(first: Value, second: Value) -> Value:
    """The value of a tensor that is one or the other (branches, loop iterations).

    Raises:
      NotIndependent: if no value describes both.
    """
    if first == second:
        return dataclasses.replace(first, shape=None)
    if first.kind is not second.kind:
        raise NotIndependent(
            "returns tensors that are per example in one case and not in another"
        )
    if first.kind is Kind.LIST:
        if first.rows is not None or second.rows is not None:
            raise NotIndependent("has a list of examples in one case only")
        elements = [v for v in (first.element, second.element) if v is not None]
        return Value(
            Kind.LIST, element=join(*elements) if elements[1:] else elements[0]
        )
    places = [(value.axis, value.rows, value.element) for value in (first, second)]
    if places[0] != places[1]:
        raise NotIndependent(
            "has the batch in another place in one case than in another"
        )
    return dataclasses.replace(
        first,
        content=None,
        fresh=first.fresh and second.fresh,
        state=first.state and second.state,
        shape=None,
    )
