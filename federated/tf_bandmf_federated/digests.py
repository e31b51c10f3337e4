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
    for path, leaf in tree.flatten_with_path(structure):
        value = leaf.numpy() if isinstance(leaf, tf.Tensor) else leaf
        value = np.asarray(value)
        head = (tuple(map(str, path)), value.dtype.str, value.shape)
        found.update(repr(head).encode())
        if value.dtype != object:
            # Its bytes without a copy of them: hashlib takes what is contiguous.
            found.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
            continue
        for item in value.ravel():
            if not isinstance(item, bytes):  # TensorFlow's dtype string
                raise TypeError(
                    f"Only arrays, numbers and strings have a digest, found "
                    f"{type(leaf).__name__} at {path}."
                )
            found.update(b"%d:" % len(item) + item)
    return found.hexdigest()


def digest_of_data(datasets: Sequence[tf.data.Dataset]) -> str:
    """A digest of the elements of data sets, in their order. It reads them all.

    TensorFlow reads, not Python: one call for each, which has all its elements in memory.
    """
    # Where an element ends, and whose it is, is part of what is digested.
    return digest_of(
        [digest_of((str(d.element_spec), _serialized(d))) for d in datasets]
    )


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
