"""Converts states to database rows and back; large arrays take several rows.

A state may contain the noise key, so only the owner may read the database.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tree

from tf_bandmf_federated.large_vectors import blocks

# A row has at most this many entries of an array, because SQLite limits blobs to 10^9
# bytes, and copies a blob when it is bound to a statement.
_PART = 1 << 22

# A row consists of an array's name, dtype and shape, and some or all of its bytes.
Row = tuple[str, str, str, Any]


def rows_of(state: Any) -> Iterator[Row]:
    """Yields the rows of a nested structure of arrays and numbers.

    Raises:
      TypeError: if a leaf is neither an array nor a number.
    """
    for name, leaf in _named(state):
        value = np.asarray(leaf)
        if value.dtype.hasobject:
            raise TypeError(
                f"A state may contain only arrays and numbers, found {type(leaf).__name__}."
            )
        flat = np.ascontiguousarray(value).reshape(-1)
        about = (name, value.dtype.str, json.dumps(value.shape))
        # An empty array also gets a row, which saves its name, dtype and shape.
        for part in blocks(0, max(flat.size, 1), _PART):
            yield *about, flat[part].view(np.uint8).data


def digest_of_rows(rows: Iterable[Row]) -> str:
    """Returns the SHA-256 of a state's rows."""
    digest = hashlib.sha256()
    for *about, content in rows:
        digest.update(repr((about, len(content))).encode())
        digest.update(content)
    return digest.hexdigest()


def state_of(rows: Iterable[Row], structure: Any) -> Any:
    """Restores a state from its rows, with the nested structure of `structure`.

    Raises:
      ValueError: if the saved arrays and the leaves of `structure` differ in their
        names, dtypes or numbers of dimensions.
    """
    saved: dict[str, np.ndarray] = {}
    for (name, dtype, shape), parts in itertools.groupby(rows, lambda row: row[:3]):
        content = b"".join(part for *_, part in parts)
        saved[name] = np.frombuffer(content, dtype).reshape(json.loads(shape))
    expected = dict(_named(structure))
    kinds, wanted = (
        [(name, np.asarray(a).dtype.str, np.ndim(a)) for name, a in arrays.items()]
        for arrays in (saved, expected)
    )
    if kinds != wanted:
        raise ValueError(
            f"The saved state is of another model or optimizer: its arrays must have "
            f"(name, dtype, rank) {wanted}, not {kinds}. Use the run's model and optimizer."
        )
    leaves = [
        type(leaf)(saved[name]) if isinstance(leaf, (bool, int, float)) else saved[name]
        for name, leaf in expected.items()
    ]
    return tree.unflatten_as(structure, leaves)


def _named(state: Any) -> Iterator[tuple[str, Any]]:
    """Yields all leaves, each with a unique name: the leaf's index and path."""
    for number, (path, leaf) in enumerate(tree.flatten_with_path(state)):
        yield f"{number} {'.'.join(map(str, path))}", leaf
