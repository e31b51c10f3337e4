"""Hashes that identify rows, records and batches by their contents.

A row is identified by its bytes, including targets and weights. A record is identified
by the input values of a row, wherever the row is stored: in arrays, files, indexed data
sets or streams. The hash of a record does not depend on the dtype, the shape of a row,
the grouping of columns into several inputs, the targets or the weights. It does depend
on the order of the columns; named inputs are sorted by name.

Two data sets are compared by record hashes. If examples are read on demand, only the
examples that were read are compared. An example and its scaled or augmented copy count
as different.

A batch contains its step, and the ids of the plan and the schedule. A fingerprint shows
whether the batch was changed after it was made. The fingerprint covers values (bit by
bit), shapes, dtypes, structure, order of the rows, sample weights, padding, the step
and both ids. The pipeline computes it after making a batch, and the training step
verifies the fingerprint before doing anything else. This protects against mistakes
(augmenting, mixing, repeating or reweighting a finished batch); it is not cryptographic
authentication. The noise key of each step is also derived from the fingerprint.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

# The keys of a batch's contents. (A batch is a dictionary.)
INPUTS, TARGETS, SAMPLE_WEIGHT = "x", "y", "sample_weight"
# Only batches whose examples consist of up to K rows have this key: a mask that is False
# for padding, bool, shape [N, K].
ROWS = "rows"
# Only batches with class weights have this key: the maximum share of the clip norm that
# each example may contribute, in [0, 1].
SHARE = "share"
CONTENT = (INPUTS, TARGETS, SAMPLE_WEIGHT, ROWS, SHARE)
FINGERPRINT = "fingerprint"
# Data sets that share at most about this fraction of their examples count as different.
_FEW = 0.01


def bytes_of(array: np.ndarray) -> Any:
    """Returns the concatenated bytes of numbers or strings."""
    flat = np.ascontiguousarray(array).ravel()
    return b"\0".join(flat) if array.dtype.hasobject else flat.view(np.uint8).data


def hash_rows(tensor: tf.Tensor) -> tf.Tensor:
    """Returns FarmHash64 of each row's bytes, int64, shape [N]; runs only on the CPU."""
    with tf.device("/CPU:0"):
        hashes = tf.bitcast(tf.fingerprint(tensor), tf.int64)
        if tensor.dtype != tf.string:
            return hashes
        # If a string tensor has no entries, TensorFlow returns uninitialized memory.
        return tf.where(tf.size(tensor) > 0, hashes, tf.zeros_like(hashes))


def row_hashes(leaves: Sequence[Any]) -> tf.Tensor:
    """Returns a hash of each row, over all tensors in `leaves`; int64, shape [N]."""
    hashes = [hash_rows(tf.convert_to_tensor(leaf)) for leaf in leaves]
    return hash_rows(tf.stack(hashes, axis=1))


def record_hashes(inputs: Any) -> tf.Tensor:
    """Returns a hash of each record's input values; can also be called in a graph.

    Numbers are hashed by their values, rounded to float32, so that float64 data and
    their float32 copies have the same hashes; integers are hashed exactly.

    Args:
      inputs: structure of dense tensors whose first axis is the axis of records. The
        hash depends on the order of the numbers, but not on how they are split into
        tensors.

    Returns:
      int64, shape [N].
    """
    with tf.device("/CPU:0"):
        leaves = [_flat(tf.convert_to_tensor(leaf)) for leaf in tf.nest.flatten(inputs)]
        texts = [leaf for leaf in leaves if leaf.dtype == tf.string]
        numbers = [_by_value(leaf) for leaf in leaves if leaf.dtype != tf.string]
        return row_hashes([tf.concat(k, 1) for k in (numbers, texts) if k])


def _flat(leaf: tf.Tensor) -> tf.Tensor:
    if leaf.dtype.is_complex:
        leaf = tf.stack([tf.math.real(leaf), tf.math.imag(leaf)], axis=-1)
    return tf.reshape(leaf, [tf.shape(leaf)[0], tf.reduce_prod(tf.shape(leaf)[1:])])


def _by_value(leaf: tf.Tensor) -> tf.Tensor:
    exact = tf.cast(leaf, tf.float64)
    # Numbers of at most two bytes need no rounding: float32 represents them exactly.
    if leaf.dtype.size > 2 and leaf.dtype != tf.float32:
        rounded = tf.cast(tf.cast(exact, tf.float32), tf.float64)
        exact = tf.where(tf.round(exact) == exact, exact, rounded)
    # Adding 0.0 turns negative zeros into zeros.
    return exact + 0.0


def share_examples(first: np.ndarray, second: np.ndarray) -> bool:
    """Returns True if hashes show that two data sets have examples in common.

    If examples have few possible values, different people can have equal examples.
    Therefore a common example counts only if it occurs once in each data set, and the
    result is True only if there are more common examples than chance explains. Suppose
    that N examples, and then n others, are drawn from one distribution. The expected
    number of common examples is at most `n / N` times the number of those among the N
    examples that have exactly one duplicate among the N (Good, 1953).

    Args:
      first: `record_hashes` of one data set.
      second: `record_hashes` of the other data set.
    """
    if not first.size or not second.size:
        return False
    sets = [np.unique(hashes, return_counts=True) for hashes in (first, second)]
    if all(map(np.array_equal, *sets)):
        return True
    once = [values[counts == 1] for values, counts in sets]
    common = np.intersect1d(once[0], once[1], assume_unique=True).size
    small, large = sorted((counts for _, counts in sets), key=np.sum)
    chance = 2.0 * (large == 2).sum() * small.sum() / large.sum()
    few = _FEW * min(map(len, once)) + 3.0 * math.sqrt(1.0 + chance)
    return bool(common > chance + few)


# Maps each schedule id of this process to a pair: a function that returns the record
# hashes, and the sentences about the data that a privacy statement must contain.
_KNOWN: dict[int, tuple[Callable[[], np.ndarray], tuple[str, ...]]] = {}
_OF_ANOTHER_PROCESS = (lambda: np.empty(0, np.int64)), ()


def remember(
    schedule_id: int, records: Callable[[], np.ndarray], remarks: tuple[str, ...]
) -> None:
    """Stores a schedule's record hashes, and its remarks for privacy statements."""
    # Schedules that read the same examples from different sources have the same id. The
    # record hashes of the first source are kept.
    first, said = _KNOWN.get(schedule_id, (records, ()))
    _KNOWN[schedule_id] = first, tuple(dict.fromkeys((*said, *remarks)))


def remarks_of(schedule_id: int) -> tuple[str, ...]:
    """Returns a schedule's remarks: sentences that privacy statements must contain.

    The result is empty if another process made the schedule.
    """
    return _KNOWN.get(schedule_id, _OF_ANOTHER_PROCESS)[1]


def records_of(schedule_id: int) -> np.ndarray:
    """Returns a schedule's record hashes.

    The result is empty if another process made the schedule.
    """
    return _KNOWN.get(schedule_id, _OF_ANOTHER_PROCESS)[0]()


def with_fingerprint(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Adds the fingerprint, `content_digest`, to a batch; can be called in a graph."""
    return {**batch, FINGERPRINT: content_digest(batch)}


def content_digest(batch: Mapping[str, Any]) -> tf.Tensor:
    """Returns an int64 digest of a batch, which is the same in every process.

    The digest covers the batch's structure, its contents, and the integers that
    identify it.

    Args:
      batch: contents (`x`, `y`, `sample_weight`, `rows`), structures of dense tensors
        whose first axis is the batch axis; and integers that identify the batch.
    """
    structure: list[str] = []
    words: list[tf.Tensor] = []
    # `hash_rows` has a kernel only for the CPU.
    with tf.device("/CPU:0"):
        for name in sorted(set(batch) - {FINGERPRINT}):
            for path, leaf in _leaves(name, batch[name]):
                tensor = tf.convert_to_tensor(leaf)
                structure.append(f"{path} {tensor.dtype.name} {tensor.shape.rank}")
                is_content = name in CONTENT
                if is_content or tensor.shape.rank != 0:
                    words.append(tf.shape(tensor, out_type=tf.int64))
                integers = hash_rows(tensor) if is_content else tf.reshape(tensor, [-1])
                words.append(tf.cast(integers, tf.int64))
        digest = hashlib.blake2b("\n".join(structure).encode(), digest_size=8).digest()
        message = tf.concat([np.frombuffer(digest, np.int64), *words], axis=0)
        return tf.reshape(hash_rows(tf.reshape(message, [1, -1])), [])


def _leaves(path: str, value: Any) -> list[tuple[str, Any]]:
    """Returns a pair of path and tensor for each tensor of a structure.

    A path consists of keys and indices, so a list and a tuple have the same paths.
    """
    if isinstance(value, (list, tuple)):
        value = dict(enumerate(value))
    if not isinstance(value, Mapping):
        return [(path, value)]
    parts = (_leaves(f"{path}/{key}", value[key]) for key in sorted(value))
    return [leaf for leaves in parts for leaf in leaves]
