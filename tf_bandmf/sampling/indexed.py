"""Examples that a function of one's own fetches by index."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

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

    Args:
      fetch: function of indices, np.int64 of shape [N], N >= 1, to `x`, `(x, y)` or
        `(x, y, sample_weight)`: structures of arrays whose first dimension is N. Called
        from one thread at a time.
      num_examples: m.

    Raises:
      TypeError: if fetch is no function, or its results are no arrays.
      ValueError: if it returns another number of rows, or other shapes or dtypes each time.
    """

    def __init__(self, fetch: Callable[[np.ndarray], Any], num_examples: int) -> None:
        if not callable(fetch):
            raise TypeError(f"fetch must be a function of indices, found {fetch!r}.")
        if isinstance(num_examples, bool) or int(num_examples) < 1:
            raise ValueError(f"num_examples must be >= 1, found {num_examples!r}.")
        self._fetch, self.num_examples = fetch, int(num_examples)
        self._lock = threading.Lock()
        first = self._arrays(np.zeros(1, np.int64))
        self._structure = first
        self._leaves = [(a.shape[1:], a.dtype) for a in tf.nest.flatten(first)]
        self._seen = np.zeros(self.num_examples, np.int64)
        self._known = np.zeros(self.num_examples, bool)
        self._records = SeenRecords(self.num_examples)
        places = probed_places(self.num_examples)
        self._sample = hashlib.blake2b(digest_size=32)
        # Example 0 alone, then beside others: it must be the same.
        self._rows(places[:1])
        self._rows(places)
        self._sample.update(self._seen[places].tobytes())

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

    def _rows(self, indices: np.ndarray) -> list[np.ndarray]:
        """The leaves of the examples, which are what they were before."""
        with self._lock:
            if len(indices) == 0:
                return [np.empty((0, *shape), dtype) for shape, dtype in self._leaves]
            leaves = tf.nest.flatten(self._arrays(np.asarray(indices, np.int64)))
            kinds = [(leaf.shape[1:], leaf.dtype) for leaf in leaves]
            if kinds != self._leaves:
                raise ValueError(
                    f"fetch must return rows of the same shapes and dtypes each time, "
                    f"found {kinds} after {self._leaves}."
                )
            hashes = hash_rows(
                tf.stack([hash_rows(tf.constant(leaf)) for leaf in leaves], axis=1)
            ).numpy()
            known = self._known[indices]
            changed = known & (self._seen[indices] != hashes)
            if changed.any():
                raise ValueError(
                    f"fetch returned something else for example "
                    f"{int(indices[np.argmax(changed)])} than before. An index must mean "
                    f"one example: augment in plan.batches(..., map=function)."
                )
            self._seen[indices] = hashes
            self._known[indices] = True
            content = tf.nest.pack_sequence_as(self._structure, leaves)
            self._records.note(indices, record_hashes(content[INPUTS]).numpy())
            return leaves

    def gather(self, indices: tf.Tensor) -> dict[str, Any]:
        dtypes = [tf.as_dtype(dtype) for _, dtype in self._leaves]
        found = tf.numpy_function(self._rows, [indices], dtypes)
        found = [found] if tf.is_tensor(found) else found  # eagerly, of one
        leaves = [
            tf.ensure_shape(leaf, [None, *shape])
            for leaf, (shape, _) in zip(found, self._leaves)
        ]
        return tf.nest.pack_sequence_as(self._structure, leaves)

    def update_digest(self, update: Callable[[Any], None]) -> None:
        update(f"indexed {self.num_examples}".encode())
        update(self._sample.digest())

    def recognized_by(self) -> Callable[[], np.ndarray]:
        return self._records.hashes
