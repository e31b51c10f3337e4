"""Readers of tables whose rows a step does not read from the layer's variable.

If the noise of a table is drawn when its rows are read, the layer's variable holds the
last release. The current rows are kept secret, outside of that variable, and are read by a
reader.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

# Maps numbers of rows, [...] integers, to the rows' weights, [..., columns] float32; NaN
# for negative numbers, and for rows that are not up to date.
TableReader = Callable[[tf.Tensor], tf.Tensor]

_NONE: Mapping[int, TableReader] = {}
_readers: contextvars.ContextVar[Mapping[int, TableReader]] = contextvars.ContextVar(
    "readers", default=_NONE
)


@contextlib.contextmanager
def read_by(readers: Mapping[int, TableReader] | None) -> Iterator[None]:
    """A context in which these readers, given by `id` of the variable, read the tables."""
    token = _readers.set(_NONE if readers is None else readers)
    try:
        yield
    finally:
        _readers.reset(token)


def reader_of(variable: Any) -> TableReader | None:
    """Returns the reader of a table; None if it is read from the layer's variable."""
    return _readers.get().get(id(variable))
