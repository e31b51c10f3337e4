"""Readers that look up the current rows of tables with lazy noise.

With lazy noise, the noise of a table row is drawn only when the row is read. The
layer's variable holds the table as it was last released. A training step gets the
current rows, which are secret, from a reader instead.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

# A function that maps row numbers, [...] integers, to the weights of these rows,
# [..., columns] float32. If a row number is negative, or its row is not up to date, the
# weights are NaN.
TableReader = Callable[[tf.Tensor], tf.Tensor]

_NONE: Mapping[int, TableReader] = {}
_readers: contextvars.ContextVar[Mapping[int, TableReader]] = contextvars.ContextVar(
    "readers", default=_NONE
)


@contextlib.contextmanager
def read_by(readers: Mapping[int, TableReader] | None) -> Iterator[None]:
    """Returns a context in which table rows are looked up with `readers`.

    Args:
      readers: maps the `id` of a table's variable to its reader; None for no readers.
    """
    token = _readers.set(_NONE if readers is None else readers)
    try:
        yield
    finally:
        _readers.reset(token)


def reader_of(variable: Any) -> TableReader | None:
    """Returns the reader for a table's variable; None if the table has no reader."""
    return _readers.get().get(id(variable))
