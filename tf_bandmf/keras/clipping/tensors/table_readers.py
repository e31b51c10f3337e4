"""Readers of tables whose rows a step does not read from the layer's variable.

If the noise of a table is drawn when its rows are read, the layer's variable holds the
last release, and the current rows are kept where nothing shows them. A reader reads
them there.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

# From rows, [...] integers, to their weights, [..., columns] float32; NaN for negative
# rows, and for those that are not up to date.
TableReader = Callable[[tf.Tensor], tf.Tensor]

_NONE: Mapping[int, TableReader] = {}
_readers: contextvars.ContextVar[Mapping[int, TableReader]] = contextvars.ContextVar(
    "readers", default=_NONE
)


@contextlib.contextmanager
def read_by(readers: Mapping[int, TableReader] | None) -> Iterator[None]:
    """Reads tables by these readers in its body, by `id` of the Keras variable."""
    token = _readers.set(_NONE if readers is None else readers)
    try:
        yield
    finally:
        _readers.reset(token)


def reader_of(variable: Any) -> TableReader | None:
    """The reader of a table, or None for one that is read where it is."""
    return _readers.get().get(id(variable))
