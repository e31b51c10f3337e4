"""Examples that a function of one's own fetches by index."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_bandmf.sampling.failing import FailedRecords, with_weights
from tf_bandmf.sampling.record_identity import (
    SeenRecords,
    hash_rows,
    probed_places,
    record_hashes,
)
from tf_bandmf.sampling.sources import (
    INPUTS,
    SAMPLE_WEIGHT,
    TARGETS,
    ExampleSource,
    text_as_bytes,
)

# So many examples of one shape and dtype show what examples are.
_ALIKE = 3


class IndexedExamples(ExampleSource):
    """Whatever can be read by index: lists, a `PyDataset`'s files, a table, a memmap.

        dataset = datasets.load_dataset(...)          # len(dataset), dataset[i]
        def fetch(indices):
            rows = [dataset[int(i)] for i in indices]
            images = np.stack([row["image"] for row in rows])
            return images, np.array([row["label"] for row in rows])
        plan.batches(tf_bandmf.sampling.IndexedExamples(fetch, len(dataset)))

    This is the way for loops that fetch their examples themselves: the library decides
    which ones a step uses, calls `fetch` with their indices, and knows what came back.
    Which example an index means may not change: what an index gave first, it must give
    always (some 20 bytes of memory each). Random augmentation belongs into
    `plan.batches(..., map=function)`.

    An example that `fetch` raises for, or returns in another shape, does not end the run.
    It is NaN where the data are floats, so that its gradient counts as zero; where none
    are, the data have sample weights, and its weight is 0. It stays failed.

    Args:
      fetch: function of indices, np.int64 of shape [N], N >= 1, to `x`, `(x, y)` or
        `(x, y, sample_weight)`: structures of arrays whose first dimension is N. Called
        from one thread at a time.
      num_examples: m.

    Raises:
      TypeError: if fetch is no function, or its results are no arrays.
      ValueError: if it returns another number of rows, or other shapes or dtypes for the
        examples that are looked at first, or fails for all of them.
    """

    def __init__(self, fetch: Callable[[np.ndarray], Any], num_examples: int) -> None:
        if not callable(fetch):
            raise TypeError(f"fetch must be a function of indices, found {fetch!r}.")
        if isinstance(num_examples, bool) or int(num_examples) < 1:
            raise ValueError(f"num_examples must be >= 1, found {num_examples!r}.")
        self._fetch, self.num_examples = fetch, int(num_examples)
        self._lock = threading.Lock()
        places = probed_places(self.num_examples)
        self._structure = self._first(places)
        leaves = tf.nest.flatten(self._structure)
        self._leaves = [(a.shape[1:], a.dtype) for a in leaves]
        self._is_weighted = not any(dtype.kind == "f" for _, dtype in self._leaves)
        self._seen = np.zeros(self.num_examples, np.int64)
        self._known = np.zeros(self.num_examples, bool)
        self._records = SeenRecords(self.num_examples)
        self.failed = FailedRecords(self.num_examples)
        self._sample = hashlib.blake2b(digest_size=32)
        # Example 0 alone, then beside others: it must be the same.
        self._rows(places[:1])
        self._rows(places, is_first=True)
        self._sample.update(self._seen[places].tobytes())

    def _first(self, places: np.ndarray) -> dict[str, Any]:
        """An example of the shape that most of the first ones have."""
        failure: Exception | None = None
        found: dict[str, list[Any]] = {}
        for place in places:
            try:
                content = self._arrays(place[None])
            except TypeError:
                raise
            except Exception as error:
                failure = failure or error
                continue
            kinds = [(a.shape, a.dtype) for a in tf.nest.flatten(content)]
            found.setdefault(str(kinds), []).append(content)
            if max(map(len, found.values())) == _ALIKE:
                break
        if not found:
            raise ValueError(
                f"fetch fails for all of the examples that it was tried with: {failure}"
            ) from failure
        return max(found.values(), key=len)[0]

    def _arrays(self, indices: np.ndarray) -> dict[str, Any]:
        found = self._fetch(indices)
        parts = found if isinstance(found, tuple) else (found,)
        if not 1 <= len(parts) <= 3:
            raise ValueError(
                f"fetch must return x, (x, y) or (x, y, sample_weight), found a tuple of "
                f"{len(parts)}. Use a dictionary for several inputs."
            )

        def array(value: Any) -> np.ndarray:
            result = text_as_bytes(np.asarray(value))
            if not result.ndim or result.shape[0] != len(indices):
                raise ValueError(
                    f"fetch got {len(indices)} indices and must return as many rows, "
                    f"found an array of shape {result.shape}."
                )
            return result

        names = (INPUTS, TARGETS, SAMPLE_WEIGHT)
        return {n: tf.nest.map_structure(array, p) for n, p in zip(names, parts)}

    def _checked(self, indices: np.ndarray) -> list[np.ndarray]:
        """The leaves of some examples, of the shapes and dtypes of the first one."""
        leaves = tf.nest.flatten(self._arrays(indices))
        kinds = [(leaf.shape[1:], leaf.dtype) for leaf in leaves]
        if kinds != self._leaves:
            raise ValueError(
                f"fetch must return rows of the same shapes and dtypes each time, "
                f"found {kinds} after {self._leaves}."
            )
        return leaves

    def _each(self, indices: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """The leaves of examples that are fetched one by one, and which works."""
        leaves = [np.zeros((len(indices), *s), dtype) for s, dtype in self._leaves]
        for leaf in leaves:
            if leaf.dtype.kind == "f":
                leaf[:] = np.nan
            elif leaf.dtype.kind == "O":
                leaf[:] = b""
        works = ~self.failed.among(indices)
        for row in np.flatnonzero(works):
            try:
                found = self._checked(indices[row : row + 1])
            except Exception:
                works[row] = False
                continue
            for leaf, part in zip(leaves, found):
                leaf[row] = part[0]
        return leaves, works

    def _rows(self, indices: np.ndarray, is_first: bool = False) -> list[np.ndarray]:
        """The leaves of the examples, which are what they were before, and weights."""
        with self._lock:
            if len(indices) == 0:
                empty = [np.empty((0, *shape), dtype) for shape, dtype in self._leaves]
                return self._with_weights(empty, np.empty(0, bool))
            indices = np.asarray(indices, np.int64)
            leaves, works = self._fetched(indices, is_first)
            self.failed.note(indices[~works])
            hashes = hash_rows(
                tf.stack([hash_rows(tf.constant(leaf)) for leaf in leaves], axis=1)
            ).numpy()
            changed = works & self._known[indices] & (self._seen[indices] != hashes)
            if changed.any():
                raise ValueError(
                    f"fetch returned something else for example "
                    f"{int(indices[np.argmax(changed)])} than before. An index must mean "
                    f"one example: augment in plan.batches(..., map=function)."
                )
            found = indices[works]
            self._seen[found] = hashes[works]
            self._known[found] = True
            content = tf.nest.pack_sequence_as(self._structure, leaves)
            records = record_hashes(content[INPUTS]).numpy()
            self._records.note(found, records[works])
            return self._with_weights(leaves, works)

    def _fetched(
        self, indices: np.ndarray, is_first: bool
    ) -> tuple[list[np.ndarray], np.ndarray]:
        if self.failed.among(indices).any():
            return self._each(indices)
        try:
            return self._checked(indices), np.ones(len(indices), bool)
        except Exception:
            leaves, works = self._each(indices)
            if is_first and works.all():
                raise  # No example is the reason.
            return leaves, works

    def _with_weights(
        self, leaves: list[np.ndarray], works: np.ndarray
    ) -> list[np.ndarray]:
        return [*leaves, works.astype(np.float32)] if self._is_weighted else leaves

    def gather(self, indices: tf.Tensor) -> dict[str, Any]:
        kinds = [*self._leaves, *([((), np.dtype("f4"))] if self._is_weighted else [])]
        dtypes = [tf.as_dtype(dtype) for _, dtype in kinds]
        found = tf.numpy_function(self._rows, [indices], dtypes)
        found = [found] if tf.is_tensor(found) else found  # eagerly, of one
        leaves = [
            tf.ensure_shape(leaf, [None, *shape])
            for leaf, (shape, _) in zip(found, kinds)
        ]
        works = leaves.pop() if self._is_weighted else None
        content = tf.nest.pack_sequence_as(self._structure, leaves)
        return content if works is None else with_weights(content, works > 0)

    def update_digest(self, update: Callable[[Any], None]) -> None:
        update(f"indexed {self.num_examples}".encode())
        update(self._sample.digest())

    def recognized_by(self) -> Callable[[], np.ndarray]:
        return self._records.hashes
