"""What a row and a record are: hashes, of which equal ones are taken for equal contents.

A row is its bytes, with targets and weights. A record is the values of a row's inputs,
whatever holds them: the same records in arrays, on disk, behind an index or in a stream
are the same records, and so they are with another dtype, another shape of a row, as one
matrix or a column for each input, with other targets or other weights. The order of the
columns counts; that of inputs with names is the order of their names.

Two data sets are compared by hashes of their records, of a million of them the smallest
ones (bottom-k sketches; Broder, 1997). Of examples that are read as they are needed, those
count that were read. Examples that were scaled or augmented before are others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

# The smallest ones of a data set that are kept.
MOST_HASHES = 2**20
# The share of examples in common that goes unnoticed.
_FEW = 0.01


def hash_rows(tensor: tf.Tensor) -> tf.Tensor:
    """FarmHash64 of the bytes of each row, int64, shape [N]; its kernel is for the host."""
    with tf.device("/CPU:0"):
        hashes = tf.bitcast(tf.fingerprint(tensor), tf.int64)
        if tensor.dtype != tf.string:
            return hashes
        # Of rows without texts, TensorFlow returns what the memory held before.
        return tf.where(tf.size(tensor) > 0, hashes, tf.zeros_like(hashes))


def record_hashes(inputs: Any) -> tf.Tensor:
    """A hash of the values of each record's inputs, in a graph too.

    Numbers count by their value, rounded to float32, so that float64 data and the float32
    data that were made of them are the same; whole numbers count with all their digits.

    Args:
      inputs: structure of dense tensors whose first dimension is the record. How numbers
        are divided among its leaves does not count, their order does.

    Returns:
      int64, shape [N].
    """
    with tf.device("/CPU:0"):
        leaves = [_flat(tf.convert_to_tensor(leaf)) for leaf in tf.nest.flatten(inputs)]
        texts = [leaf for leaf in leaves if leaf.dtype == tf.string]
        numbers = [_by_value(leaf) for leaf in leaves if leaf.dtype != tf.string]
        kinds = [hash_rows(tf.concat(kind, 1)) for kind in (numbers, texts) if kind]
        return hash_rows(tf.stack(kinds, axis=1))


def _flat(leaf: tf.Tensor) -> tf.Tensor:
    if leaf.dtype.is_complex:
        leaf = tf.stack([tf.math.real(leaf), tf.math.imag(leaf)], axis=-1)
    return tf.reshape(leaf, [tf.shape(leaf)[0], tf.reduce_prod(tf.shape(leaf)[1:])])


def _by_value(leaf: tf.Tensor) -> tf.Tensor:
    exact = tf.cast(leaf, tf.float64)
    if leaf.dtype.size > 2 and leaf.dtype != tf.float32:  # others float32 holds
        rounded = tf.cast(tf.cast(exact, tf.float32), tf.float64)
        exact = tf.where(tf.round(exact) == exact, exact, rounded)
    return exact + 0.0  # no negative zero


class Records(NamedTuple):
    """Which records there are.

    Attributes:
      hashes: sorted, uint64, shape [K]; of many records, the smallest ones.
      counts: how many records have each, int64, shape [K].
    """

    hashes: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, hashes: np.ndarray) -> Records:
        """Records with these hashes, int64."""
        values, counts = np.unique(hashes.view(np.uint64), return_counts=True)
        return cls(values[:MOST_HASHES], counts[:MOST_HASHES])

    def up_to(self, largest: np.uint64) -> Records:
        """Those whose hashes are not larger."""
        end = np.searchsorted(self.hashes, largest, side="right")
        return Records(self.hashes[:end], self.counts[:end])


class SeenRows:
    """Hashes of the rows that were read so far: what an index gave first it gives always.

    Args:
      num_examples: m; some 20 bytes each.
    """

    def __init__(self, num_examples: int) -> None:
        # Of the record and of the row.
        self.hashes = np.zeros([num_examples, 2], np.int64)
        self._is_seen = np.zeros(num_examples, bool)
        self._counted, self._records = 0, Records.of(np.empty(0, np.int64))

    def changed(
        self, indices: np.ndarray, inputs: Any, leaves: Sequence[Any]
    ) -> np.ndarray:
        """Notes rows; says which are not what they were, indices.

        Args:
          indices: of the rows, int64, shape [N], N >= 1.
          inputs: those of the record.
          leaves: all that the rows hold.
        """
        hashes = [hash_rows(tf.convert_to_tensor(leaf)) for leaf in leaves]
        rows, seen = hash_rows(tf.stack(hashes, axis=1)).numpy(), self._is_seen[indices]
        if not seen.all():
            first = indices[~seen]
            self.hashes[first, 0] = record_hashes(inputs).numpy()[~seen]
            self.hashes[first, 1] = rows[~seen]
            self._is_seen[first] = True
        return indices[self.hashes[indices, 1] != rows]

    def of_rows(self) -> np.ndarray:
        """Of the rows that were read."""
        return self.hashes[self._is_seen, 1]

    def records(self) -> Records:
        """The records that were read."""
        if self._counted != (count := int(self._is_seen.sum())):
            self._records = Records.of(self.hashes[self._is_seen, 0])
            self._counted = count
        return self._records


def share_examples(first: Records, second: Records) -> bool:
    """Whether two data sets have examples in common, as far as they show it.

    Where examples have few values, different people have equal ones: those count that
    come once in both data sets, and only more of them than chance explains. Of n of the
    same kind of examples, `n / N` times those in pairs among N come so at most, on
    average (Good, 1953).
    """
    ends = [r.hashes[-1] for r in (first, second) if len(r.hashes) == MOST_HASHES]
    if ends:
        first, second = first.up_to(min(ends)), second.up_to(min(ends))
    if not len(first.hashes) or not len(second.hashes):
        return False
    if all(map(np.array_equal, first, second)):
        return True
    once = [records.hashes[records.counts == 1] for records in (first, second)]
    common = np.intersect1d(once[0], once[1], assume_unique=True).size
    small, large = sorted((first.counts, second.counts), key=np.sum)
    chance = 2.0 * (large == 2).sum() * small.sum() / large.sum()
    few = _FEW * min(map(len, once)) + 3.0 * math.sqrt(1.0 + chance)
    return bool(common > chance + few)


# By the id of a schedule, as long as the process lives.
_RECORDS: dict[int, Callable[[], Records]] = {}
_REMARKS: dict[int, tuple[str, ...]] = {}


def remember(
    schedule_id: int, records: Callable[[], Records], remarks: tuple[str, ...]
) -> None:
    """Keeps what is known of a schedule's data."""
    # The same examples may also have come from elsewhere.
    said = dict.fromkeys((*remarks_of(schedule_id), *remarks))
    _REMARKS[schedule_id] = tuple(said)
    _RECORDS.setdefault(schedule_id, records)


def remarks_of(schedule_id: int) -> tuple[str, ...]:
    """What a statement must say of the data; empty for a schedule of another process."""
    return _REMARKS.get(schedule_id, ())


def records_of(schedule_id: int) -> Records:
    """The records of a schedule; none for one of another process."""
    if schedule_id not in _RECORDS:
        return Records.of(np.empty(0, np.int64))
    return _RECORDS[schedule_id]()
