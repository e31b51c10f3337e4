"""What the rows of a source of the caller's are: their shapes and dtypes, in one place.

An example that cannot be read, or has another shape, is a row of zeros with the weight 0.
"""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_bandmf.sampling.failing import with_weights
from tf_bandmf.sampling.record_identity import (
    Records,
    SeenRecords,
    hash_rows,
    record_hashes,
)
from tf_bandmf.sampling.sources import INPUTS, ExampleSource, text_as_bytes

# So many examples of one shape and dtype show what examples are.
_ALIKE = 3

# Leaves of neighboring examples, whose first dimension is the example.
Leaves = list[np.ndarray]
# Leaves of some examples, and which of them could be read, bool.
Block = tuple[Leaves, np.ndarray]


class RowKinds:
    """The structure of an example, and the shapes and dtypes of its leaves.

    Args:
      samples: contents of blocks of examples. The first kind of which there are three
        counts, or else the one that is there most often: the first example may be the one
        that is damaged.

    Attributes:
      structure: of the contents.
      kinds: (shape of a row, dtype) of each leaf.

    Raises:
      ValueError: if there are none.
    """

    def __init__(self, samples: Iterable[dict[str, Any]]) -> None:
        found: dict[str, list[dict[str, Any]]] = {}
        for content in samples:
            alike = found.setdefault(str(_kinds(tf.nest.flatten(content))), [])
            alike.append(content)
            if len(alike) == _ALIKE:
                break
        if not found:
            raise ValueError("The data set has no examples that can be read.")
        self.structure = max(found.values(), key=len)[0]
        self.kinds = _kinds(tf.nest.flatten(self.structure))

    def checked(self, content: dict[str, Any]) -> Leaves:
        """The leaves of some examples; raises ValueError if they are of another kind."""
        leaves = tf.nest.flatten(content)
        kinds = _kinds(leaves)
        if kinds != self.kinds:
            raise ValueError(
                f"The examples must have one structure, shape and dtype, found {kinds} "
                f"after {self.kinds}. Pad or cut them to one shape."
            )
        return leaves

    def rows_of_each(self) -> int | None:
        """The first dimension of all leaves of an example: it may be a batch; or None."""
        sizes = {shape[0] if shape else None for shape, _ in self.kinds}
        return sizes.pop() if len(sizes) == 1 else None

    def blank(self, count: int) -> Leaves:
        """Rows of zeros, for examples that cannot be read."""
        leaves = [np.zeros((count, *shape), dtype) for shape, dtype in self.kinds]
        for leaf in leaves:
            if leaf.dtype == object:
                leaf[...] = b""
        return leaves

    def hashes(self, leaves: Leaves) -> np.ndarray:
        """A hash of each row, int64."""
        parts = [hash_rows(tf.constant(leaf)) for leaf in leaves]
        return hash_rows(tf.stack(parts, axis=1)).numpy()

    def packed(self, leaves: Leaves) -> dict[str, Any]:
        """The content that some leaves are of."""
        return tf.nest.pack_sequence_as(self.structure, leaves)

    def gathered(self, read: Callable[..., Block], *given: tf.Tensor) -> dict[str, Any]:
        """What a function makes of some tensors, in a graph too.

        Args:
          read: returns leaves, and which examples could be read, bool, shape [N].
          *given: its arguments.
        """

        def rows(*arrays: np.ndarray) -> list[np.ndarray]:
            leaves, works = read(*arrays)
            return [*leaves, works]

        dtypes = [*(tf.as_dtype(dtype) for _, dtype in self.kinds), tf.bool]
        *leaves, works = tf.numpy_function(rows, given, dtypes)
        leaves = [
            tf.ensure_shape(leaf, [None, *shape])
            for leaf, (shape, _) in zip(leaves, self.kinds)
        ]
        return with_weights(self.packed(leaves), tf.ensure_shape(works, [None]))


class KeptExamples(ExampleSource):
    """Examples that a caller's code reads: each is always what it was the first time.

    One that cannot be read, or has another shape, does not end the run: it becomes a row
    of zeros with sample weight 0, and stays one.

    Args:
      kinds: what rows are.
      num_examples: m; some 20 bytes of memory for each.
    """

    # Of an example that is not what it was, by its `place`.
    _changed: str

    def __init__(self, kinds: RowKinds, num_examples: int) -> None:
        self._kinds, self.num_examples = kinds, num_examples
        self._lock = threading.Lock()
        self._hashes = np.zeros(num_examples, np.int64)
        self._known = np.zeros(num_examples, bool)
        self._records = SeenRecords(num_examples)
        self._failed = np.zeros(num_examples, bool)

    def _kept(self, indices: np.ndarray, leaves: Leaves, works: np.ndarray) -> Block:
        """What was read, and zeros where that failed once.

        Raises:
          ValueError: if an example is not what it was.
        """
        self._failed[indices[~works]] = True
        works = ~self._failed[indices]
        hashes = self._kinds.hashes(leaves)
        changed = works & self._known[indices] & (self._hashes[indices] != hashes)
        if changed.any():
            place = int(indices[np.argmax(changed)])
            raise ValueError(self._changed.format(place=place))
        first = works & ~self._known[indices]
        if first.any():
            records = record_hashes(self._kinds.packed(leaves)[INPUTS]).numpy()
            self._records.note(indices[first], records[first])
            self._hashes[indices[first]] = hashes[first]
            self._known[indices[first]] = True
        if not works.all():
            leaves = [leaf.copy() for leaf in leaves]
            for leaf, blank in zip(leaves, self._kinds.blank(1)):
                leaf[~works] = blank
        return leaves, works

    def recognized_by(self) -> Callable[[], Records]:
        return self._records.records

    def row_hashes(self) -> np.ndarray:
        """Of the examples that were read and did not fail."""
        return self._hashes[self._known]


class ReadExamples(KeptExamples):
    """Examples that Python code reads, by one thread at a time."""

    @abc.abstractmethod
    def _read(self, indices: np.ndarray) -> Block:
        """Leaves of some examples, N >= 1, and which could be read, bool, shape [N]."""

    def _rows(self, indices: np.ndarray) -> Block:
        with self._lock:
            if not len(indices):
                return self._kinds.blank(0), np.empty(0, bool)
            return self._kept(indices, *self._read(indices))

    def gather(self, indices: tf.Tensor) -> dict[str, Any]:
        return self._kinds.gathered(self._rows, indices)


def refuse_most_failed(works: np.ndarray, what: str) -> None:
    """Raises ValueError if half of some examples or more could not be read."""
    failed = int(works.size - works.sum())
    if failed and 2 * failed >= works.size:
        raise ValueError(
            f"{what}: {failed} of {works.size} examples raise an error, or have another "
            f"shape or dtype than others. Examples must have one shape: pad or cut them. A "
            f"few that cannot be read count zero, but not most of them."
        )


def rows_of(value: Any, count: int | None = None) -> np.ndarray:
    """An array whose first dimension is the example.

    Args:
      value: what the caller's code returned.
      count: how many rows there must be, if that is known.

    Raises:
      ValueError: if there are others.
    """
    result = text_as_bytes(np.asarray(value))
    if not result.ndim or (count is not None and len(result) != count):
        expected = "rows" if count is None else f"as many rows as indices, {count}"
        raise ValueError(
            f"A block of examples must have {expected}; found an array of shape "
            f"{result.shape}."
        )
    return result


def _kinds(leaves: Iterable[np.ndarray]) -> list[tuple[tuple[int, ...], np.dtype]]:
    return [(leaf.shape[1:], leaf.dtype) for leaf in leaves]
