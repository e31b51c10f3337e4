"""Examples that a custom function fetches by index."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_bandmf.sampling.failing import FailedRecords
from tf_bandmf.sampling.record_identity import (
    SeenRecords,
    hash_rows,
    probed_places,
    record_hashes,
)
from tf_bandmf.sampling.row_kinds import Leaves, RowKinds, refuse_most_failed, rows_of
from tf_bandmf.sampling.sources import INPUTS, ExampleSource, named_parts


class IndexedExamples(ExampleSource):
    """Whatever can be read by index: lists, a `PyDataset`'s files, a table, a memmap.

        dataset = datasets.load_dataset(...)          # len(dataset), dataset[i]
        def fetch(indices):
            rows = [dataset[int(i)] for i in indices]
            images = np.stack([row["image"] for row in rows])
            return images, np.array([row["label"] for row in rows])
        plan.batches(tf_bandmf.sampling.IndexedExamples(fetch, len(dataset)))

    Use this for loops that fetch their own examples: the library decides which ones a
    step uses, calls `fetch` with their indices, and knows what came back. An index must
    always give the same example: the library remembers what it gave first (some 20
    bytes of memory for each). Random augmentation belongs in
    `plan.batches(..., map=function)`.

    An example for which `fetch` raises, or which it returns in another shape, does not
    end the run: it becomes a row of zeros with sample weight 0, and stays one.

    Args:
      fetch: function that maps indices, np.int64 of shape [N], N >= 1, to `x`, `(x, y)`
        or `(x, y, sample_weight)`: structures of arrays whose first dimension is N. One
        thread at a time calls it.
      num_examples: m.

    Raises:
      TypeError: if fetch is not a function, or its results are not arrays.
      ValueError: if it returns another number of rows, or fails for half of the
        examples that are checked first.
    """

    def __init__(self, fetch: Callable[[np.ndarray], Any], num_examples: int) -> None:
        if not callable(fetch):
            raise TypeError(f"fetch must be a function of indices, found {fetch!r}.")
        if isinstance(num_examples, bool) or int(num_examples) < 1:
            raise ValueError(f"num_examples must be >= 1, found {num_examples!r}.")
        self._fetch, self.num_examples = fetch, int(num_examples)
        self._lock = threading.Lock()
        places = probed_places(self.num_examples)
        self._kinds = self._first(places)
        self._seen = np.zeros(self.num_examples, np.int64)
        self._known = np.zeros(self.num_examples, bool)
        self._records = SeenRecords(self.num_examples)
        self.failed = FailedRecords(self.num_examples)
        self._sample = hashlib.blake2b(digest_size=32)
        # Example 0 alone, then beside others: it must be the same.
        self._rows(places[:1])
        _, works = self._rows(places, is_first=True)
        refuse_most_failed(works, "fetch, as far as it was tried")
        self._sample.update(self._seen[places].tobytes())

    def _first(self, places: np.ndarray) -> RowKinds:
        failure: Exception | None = None

        def samples() -> Iterator[dict[str, Any]]:
            nonlocal failure
            for place in places:
                try:
                    content = self._content(place[None])
                except Exception as error:
                    failure = failure or error
                    continue
                yield content

        try:
            return RowKinds(samples())
        except ValueError:
            kind = TypeError if isinstance(failure, TypeError) else ValueError
            raise kind(
                f"fetch fails for all of the examples that it was tried with: {failure}"
            ) from failure

    def _content(self, indices: np.ndarray) -> dict[str, Any]:
        found = self._fetch(indices)
        parts = found if isinstance(found, tuple) else (found,)
        return {
            name: tf.nest.map_structure(lambda v: rows_of(v, len(indices)), part)
            for name, part in named_parts(parts, "fetch must return").items()
        }

    def _each(self, indices: np.ndarray) -> tuple[Leaves, np.ndarray]:
        """The leaves of examples that are fetched one by one, and which works."""
        leaves = self._kinds.blank(len(indices))
        works = ~self.failed.among(indices)
        for row in np.flatnonzero(works):
            try:
                found = self._kinds.checked(self._content(indices[row : row + 1]))
            except Exception:
                works[row] = False
                continue
            for leaf, part in zip(leaves, found):
                leaf[row] = part[0]
        return leaves, works

    def _rows(
        self, indices: np.ndarray, is_first: bool = False
    ) -> tuple[Leaves, np.ndarray]:
        """The leaves of the examples, which are what they were before, and which work."""
        with self._lock:
            if len(indices) == 0:
                return self._kinds.blank(0), np.empty(0, bool)
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
            records = record_hashes(self._kinds.packed(leaves)[INPUTS]).numpy()
            self._records.note(found, records[works])
            return leaves, works

    def _fetched(
        self, indices: np.ndarray, is_first: bool
    ) -> tuple[Leaves, np.ndarray]:
        if self.failed.among(indices).any():
            return self._each(indices)
        try:
            leaves = self._kinds.checked(self._content(indices))
            return leaves, np.ones(len(indices), bool)
        except Exception:
            leaves, works = self._each(indices)
            if is_first and works.all():
                raise  # No example is the reason.
            return leaves, works

    def gather(self, indices: tf.Tensor) -> dict[str, Any]:
        return self._kinds.gathered(self._rows, indices)

    def update_digest(self, update: Callable[[Any], None]) -> None:
        update(f"indexed {self.num_examples}".encode())
        update(self._sample.digest())

    def recognized_by(self) -> Callable[[], np.ndarray]:
        return self._records.hashes
