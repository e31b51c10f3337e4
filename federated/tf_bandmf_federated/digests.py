"""SHA-256 digests of nested values and of data sets, for the ledger."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tree


def digest_of(structure: Any) -> str:
    """Of all leaves of a nested structure: names, dtypes, shapes and values.

    Raises:
      TypeError: if a leaf is no array or number.
    """
    found = hashlib.sha256()
    _add(found, structure)
    return found.hexdigest()


def digest_of_data(datasets: Sequence[Any]) -> str:
    """Of the elements of data sets, in their order. It reads them all.

    Args:
      datasets: of `tf.data.Dataset`, or of anything that iterates over nested values.
    """
    found = hashlib.sha256()
    for number, dataset in enumerate(datasets):
        for element in dataset:
            # Where an element ends, and whose it is, is part of what is digested.
            found.update(b"element of %d;" % number)
            _add(found, element)
    return found.hexdigest()


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
            found.update(np.ascontiguousarray(value).tobytes())


def _is_text(value: np.ndarray) -> bool:
    """Whether it is TensorFlow's dtype string."""
    return all(isinstance(item, bytes) for item in value.ravel())
