"""What a record is, whatever holds it: one digest of its inputs for all sources.

The same records in arrays, on disk, behind an index or in a stream are the same records,
and so they are with another dtype, another shape of a row (flattened images), as one
matrix or a column for each input, with other targets or other weights. The order of the
columns counts; that of inputs with names is the order of their names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

# Whole numbers up to here count in full, also where float32 cannot hold them.
_EXACT = 2.0**53
# Evenly spread examples that are looked at before a run begins, where all take too long.
PROBED = 256
# The smallest ones of a data set that are kept.
MOST_HASHES = 2**20


def hash_rows(tensor: tf.Tensor) -> tf.Tensor:
    """FarmHash64 of each row, int64, shape [N]; its kernel is for the host."""
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
        leaves = [_row_of(leaf) for leaf in tf.nest.flatten(inputs)]
        texts = [leaf for leaf in leaves if leaf.dtype == tf.string]
        numbers = [leaf for leaf in leaves if leaf.dtype != tf.string]
        hashes = [_hash_of_numbers(numbers)] if numbers else []
        hashes += [hash_rows(tf.concat(texts, axis=1))] if texts else []
        return hash_rows(tf.stack(hashes, axis=1))


def _row_of(leaf: Any) -> tf.Tensor:
    tensor = tf.convert_to_tensor(leaf)
    rows = tf.shape(tensor)[0]
    flat = tf.reshape(tensor, [rows, tf.reduce_prod(tf.shape(tensor)[1:])])
    if flat.dtype.is_complex:
        return tf.concat([tf.math.real(flat), tf.math.imag(flat)], axis=1)
    return flat


def _hash_of_numbers(leaves: Sequence[tf.Tensor]) -> tf.Tensor:
    """A hash of the numbers of all leaves, however they are divided among these."""
    # No negative zero; all NaN are one.
    singles = [tf.cast(leaf, tf.float32) + 0.0 for leaf in leaves]
    single = tf.concat(singles, axis=1)
    single = tf.where(tf.math.is_nan(single), np.float32("nan"), single)
    hashes = hash_rows(single)
    rests = [
        _rest(leaf, rounded)
        for leaf, rounded in zip(leaves, singles, strict=True)
        if leaf.dtype.size >= 4 and leaf.dtype != tf.float32
    ]
    if not rests:
        return hashes
    # Zeros and places do not matter, for a leaf of fewer bits has no rest.
    rest = tf.pad(tf.concat(rests, axis=1), [[0, 0], [0, 1]])
    found = [
        reduced(values, axis=1)
        for reduced, values in (
            (tf.reduce_sum, rest),
            (tf.reduce_sum, tf.abs(rest)),
            (tf.reduce_max, rest),
            (tf.reduce_min, rest),
        )
    ]
    more = tf.reduce_any(rest != 0.0, axis=1)
    return tf.where(more, hashes ^ hash_rows(tf.stack(found, axis=1)), hashes)


def _rest(leaf: tf.Tensor, single: tf.Tensor) -> tf.Tensor:
    """What rounding to float32 takes from whole numbers, float64."""
    double = tf.cast(leaf, tf.float64)
    whole = (tf.round(double) == double) & (tf.abs(double) <= _EXACT)
    rest = double - tf.cast(single, tf.float64)
    return tf.where(whole, rest, tf.zeros_like(rest))


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


class SeenRecords:
    """Hashes of the records that were read so far, by which they are recognized.

    Args:
      num_examples: m; 9 bytes each.
    """

    def __init__(self, num_examples: int) -> None:
        self._hashes = np.zeros(num_examples, np.int64)
        self._known = np.zeros(num_examples, bool)

    def note(self, indices: np.ndarray, hashes: np.ndarray) -> None:
        """Keeps the hashes of some records, int64, shape [N]."""
        self._hashes[indices] = hashes
        self._known[indices] = True

    def records(self) -> Records:
        """The records that are known."""
        return Records.of(self._hashes[self._known])


def probed_places(num_examples: int) -> np.ndarray:
    """Evenly spread pairs of neighbors, which are equal where rows were repeated; int64."""
    if num_examples <= PROBED:
        return np.arange(num_examples)
    first = np.linspace(0, num_examples - 2, PROBED // 2).astype(np.int64)
    return np.unique([first, first + 1])
