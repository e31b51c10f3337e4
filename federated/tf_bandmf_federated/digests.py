"""SHA-256 digests of nested values and of data sets, for the ledger."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tree

_ALL = 2**62  # elements of one batch


def digest_of(structure: Any) -> str:
    """A digest of all leaves of a nested structure: names, dtypes, shapes and values.

    Raises:
      TypeError: if a leaf is no array or number.
    """
    found = hashlib.sha256()
    _add(found, structure)
    return found.hexdigest()


def digest_of_data(datasets: Sequence[tf.data.Dataset]) -> str:
    """A digest of the elements of data sets, in their order. It reads them all.

    TensorFlow reads, not Python: one call for each, which has all its elements in memory.
    """
    found = hashlib.sha256()
    for number, dataset in enumerate(datasets):
        # Where an element ends, and whose it is, is part of what is digested.
        rows = _serialized(dataset).numpy()
        head = (number, rows.shape, str(dataset.element_spec))
        found.update(repr(head).encode())
        for leaf in rows.ravel():
            found.update(b"%d:" % len(leaf))
            found.update(leaf)
    return found.hexdigest()


@tf.function
def _serialized(dataset: tf.data.Dataset) -> tf.Tensor:
    """Elements as strings, shape [elements + 1, leaves], with dtypes, shapes and values.

    The last row is empty: a data set without elements has a row, too.
    """

    def strings(*element: Any) -> tf.Tensor:
        leaves = tf.nest.flatten(element, expand_composites=True)
        return tf.stack([tf.io.serialize_tensor(leaf) for leaf in leaves])

    rows = dataset.map(strings)
    end = tf.data.Dataset.from_tensors(tf.fill(rows.element_spec.shape, ""))
    return rows.concatenate(end).batch(_ALL).get_single_element()


def _add(found: Any, structure: Any) -> None:
    for path, leaf in tree.flatten_with_path(structure):
        value = leaf.numpy() if isinstance(leaf, tf.Tensor) else np.asarray(leaf)
        value = np.asarray(value)
        if value.dtype == object and not _is_text(value):
            raise TypeError(
                f"Only arrays, numbers and strings have a digest, found "
                f"{type(leaf).__name__} at {path}."
            )
        head = (tuple(map(str, path)), value.dtype.str, value.shape)
        found.update(repr(head).encode())
        if value.dtype == object:
            for item in value.ravel():
                found.update(b"%d:" % len(item) + item)
        else:
            # Its bytes without a copy of them: hashlib takes what is contiguous.
            found.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)


def _is_text(value: np.ndarray) -> bool:
    """Whether it is TensorFlow's dtype string."""
    return all(isinstance(item, bytes) for item in value.ravel())
