"""Converts states to database rows, and back; large arrays take several rows.

A state may contain the noise key, so only the owner may read the database.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
import tree

from tf_bandmf_federated.large_vectors import blocks

# SQLite limits blobs to 10^9 bytes, and copies a blob when it is bound to a statement.
_PART = 1 << 22  # numbers per row

Row = tuple[str, str, str, Any]  # name, dtype, shape, content


def rows_of(state: Any) -> Iterator[Row]:
    """Yields the rows of a nested structure of arrays and numbers.

    Raises:
      TypeError: if a leaf is neither an array nor a number.
    """
    for name, leaf in _named(state):
        value = np.asarray(leaf.numpy() if isinstance(leaf, tf.Tensor) else leaf)
        if value.dtype.hasobject:
            raise TypeError(
                f"A state must be arrays and numbers, found {type(leaf).__name__}."
            )
        flat = np.ascontiguousarray(value).reshape(-1)
        about = (name, value.dtype.str, json.dumps(value.shape))
        for part in blocks(0, max(flat.size, 1), _PART):  # empty arrays have one row
            yield *about, flat[part].view(np.uint8).data


def digest_of_rows(rows: Iterable[Row]) -> str:
    """Returns the SHA-256 of rows."""
    digest = hashlib.sha256()
    for *about, content in rows:
        digest.update(repr((about, len(content))).encode())
        digest.update(content)
    return digest.hexdigest()


def state_of(rows: Iterable[Row], structure: Any) -> Any:
    """Restores a state from its rows; `structure` is any state of the same structure.

    Raises:
      ValueError: if the arrays of `structure` have other names, dtypes or numbers of
        dimensions.
    """
    kinds: dict[str, tuple[str, str]] = {}
    parts: dict[str, list[bytes]] = {}
    for name, dtype, shape, content in rows:
        kinds[name] = dtype, shape
        parts.setdefault(name, []).append(content)
    expected = dict(_named(structure))
    other = "The run's state was saved by another process: it "
    if list(parts) != list(expected):
        raise ValueError(f"{other}holds {[*parts]}, expected {[*expected]}.")
    leaves = []
    for name, template in expected.items():
        dtype, shape = kinds[name][0], json.loads(kinds[name][1])
        wanted = np.asarray(template)
        is_plain = isinstance(template, (bool, int, float))  # they have no dtype
        same = is_plain or wanted.dtype.str == dtype
        if not same or wanted.ndim != len(shape):
            raise ValueError(
                f"{other}has {name} of dtype {dtype} and shape {shape}, expected "
                f"{wanted.dtype.str} and as many dimensions as {wanted.shape}."
            )
        value = np.empty(shape, dtype)
        flat, start = value.reshape(-1).view(np.uint8), 0
        for content in parts.pop(name):
            flat[start : start + len(content)] = np.frombuffer(content, np.uint8)
            start += len(content)
        leaves.append(type(template)(value) if is_plain else value)
    return tree.unflatten_as(structure, leaves)


def _named(state: Any) -> Iterator[tuple[str, Any]]:
    """Returns all leaves, each with a unique name composed of its index and path."""
    for number, (path, leaf) in enumerate(tree.flatten_with_path(state)):
        yield f"{number} {'.'.join(map(str, path))}", leaf
