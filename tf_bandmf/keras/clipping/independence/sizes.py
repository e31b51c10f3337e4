"""Symbolic integers: sizes of axes in terms of the batch size B.

A size is a product of an integer, B and sizes that are only known when the graph runs.
That is enough for what reshapes, broadcasts and tiles are made of. A sum of different
products is a new symbol, which remembers only whether B is in it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Union

_BATCH = "B"
# Symbols that are no products but depend on the batch size begin like this.
_BATCH_DEPENDENT = "B?"
_COUNTER = itertools.count()


@dataclasses.dataclass(frozen=True)
class Dim:
    """A product of an integer and symbols, in alphabetical order."""

    factor: int
    symbols: tuple[str, ...] = ()

    @property
    def depends_on_batch(self) -> bool:
        """Whether B is in it."""
        return any(symbol.startswith(_BATCH) for symbol in self.symbols)

    @property
    def is_batch(self) -> bool:
        """Whether it is B itself."""
        return self == BATCH

    @property
    def is_rows(self) -> bool:
        """Whether it is m * B, where m >= 1 does not depend on B."""
        inside = [s for s in self.symbols if s.startswith(_BATCH)]
        return inside == [_BATCH] and self.factor >= 1

    def __mul__(self, other: Dim) -> Dim:
        symbols = tuple(sorted(self.symbols + other.symbols))
        return Dim(self.factor * other.factor, symbols)

    def over(self, other: Dim) -> Dim | None:
        """The quotient if it is a product again, else None."""
        symbols = list(self.symbols)
        for symbol in other.symbols:
            if symbol not in symbols:
                return None
            symbols.remove(symbol)
        if other.factor == 0 or self.factor % other.factor:
            return None
        return Dim(self.factor // other.factor, tuple(symbols))


BATCH = Dim(1, (_BATCH,))
ONE = Dim(1)
# Entries of an integer vector, or an integer scalar; None where nothing is known.
Content = Union[None, Dim, tuple[Dim, ...]]


def unknown(depends_on_batch: bool = False) -> Dim:
    """A new symbol."""
    prefix = _BATCH_DEPENDENT if depends_on_batch else "d"
    return Dim(1, (f"{prefix}{next(_COUNTER)}",))


def product(dims: Sequence[Dim]) -> Dim:
    """The product of sizes, 1 for none."""
    total = ONE
    for dim in dims:
        total = total * dim
    return total


def combine(kind: str, first: Dim, second: Dim) -> Dim:
    """Result of an integer operation on two sizes.

    Args:
      kind: type of the operation, as `Mul`.
      first: its first operand.
      second: its second operand.
    """
    exact: Dim | None = None
    if kind == "Mul":
        exact = first * second
    elif kind in ("FloorDiv", "RealDiv", "TruncateDiv", "Div"):
        exact = first.over(second)
    elif kind in ("Add", "AddV2", "Sub") and first.symbols == second.symbols:
        sign = -1 if kind == "Sub" else 1
        factor = first.factor + sign * second.factor
        exact = Dim(factor, first.symbols if factor else ())
    elif kind in ("Add", "AddV2") and 0 in (first.factor, second.factor):
        exact = second if first.factor == 0 else first
    elif kind == "Sub" and second.factor == 0:
        exact = first
    elif kind in ("Maximum", "Minimum") and first == second:
        exact = first
    elif kind in ("Maximum", "Minimum") and not (first.symbols or second.symbols):
        largest = max(first.factor, second.factor)
        smallest = min(first.factor, second.factor)
        exact = Dim(largest if kind == "Maximum" else smallest)
    if exact is not None:
        return exact
    return unknown(first.depends_on_batch or second.depends_on_batch)


def as_tuple(content: Content) -> tuple[Dim, ...] | None:
    """Entries of a vector or of a scalar."""
    return (content,) if isinstance(content, Dim) else content


def depends_on_batch(content: Content) -> bool:
    """Whether some entry depends on B, or is not known."""
    entries = as_tuple(content)
    return entries is None or any(entry.depends_on_batch for entry in entries)
