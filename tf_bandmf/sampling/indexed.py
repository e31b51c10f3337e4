"""Examples that a custom function fetches by index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_bandmf.sampling.failing import said_of
from tf_bandmf.sampling.record_identity import probed_places
from tf_bandmf.sampling.row_kinds import (
    Block,
    Leaves,
    ReadExamples,
    RowKinds,
    refuse_most_failed,
    rows_of,
)
from tf_bandmf.sampling.sources import named_parts


class IndexedExamples(ReadExamples):
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

    _changed = (
        "fetch returned something else for example {place} than before. An index must mean "
        "one example: augment in plan.batches(..., map=function)."
    )

    def __init__(self, fetch: Callable[[np.ndarray], Any], num_examples: int) -> None:
        if not callable(fetch):
            raise TypeError(f"fetch must be a function of indices, found {fetch!r}.")
        if isinstance(num_examples, bool) or int(num_examples) < 1:
            raise ValueError(f"num_examples must be >= 1, found {num_examples!r}.")
        self._fetch = fetch
        places = probed_places(int(num_examples))
        super().__init__(self._first(places), int(num_examples))
        # Example 0 alone, then beside others: it must be the same.
        self._rows(places[:1])
        try:
            leaves, works = self._at_once(places), np.ones(len(places), bool)
        except Exception as error:
            leaves, works = self._each(places)
            if works.all():
                raise ValueError(
                    f"fetch fails for several indices, and for none of them alone "
                    f"({said_of(error)}). It gets an array of indices, of any length, "
                    f"and returns as many rows."
                ) from None
        self._kept(places, leaves, works)
        refuse_most_failed(works, "fetch, as far as it was tried")
        self._sample = self._hashes[places].tobytes()

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
            if failure is None:
                raise
            kind = TypeError if isinstance(failure, TypeError) else ValueError
            raise kind(
                f"fetch fails for all of the examples that it was tried with "
                f"({said_of(failure)}). Call it with np.array([0]) to see why."
            ) from None

    def _content(self, indices: np.ndarray) -> dict[str, Any]:
        content = named_parts(self._fetch(indices), "fetch must return")
        return tf.nest.map_structure(lambda v: rows_of(v, len(indices)), content)

    def _at_once(self, indices: np.ndarray) -> Leaves:
        return self._kinds.checked(self._content(indices))

    def _each(self, indices: np.ndarray) -> Block:
        """As `_read`, one by one."""
        leaves = self._kinds.blank(len(indices))
        works = ~self._failed[indices]
        for row in np.flatnonzero(works):
            try:
                parts = self._at_once(indices[row : row + 1])
            except Exception:
                works[row] = False
                continue
            for leaf, part in zip(leaves, parts):
                leaf[row] = part[0]
        return leaves, works

    def _read(self, indices: np.ndarray) -> Block:
        indices = np.asarray(indices, np.int64)
        if not self._failed[indices].any():
            try:
                return self._at_once(indices), np.ones(len(indices), bool)
            except Exception:  # which may be of one example
                pass
        return self._each(indices)

    def update_digest(self, update: Callable[[Any], None]) -> None:
        update(f"indexed {self.num_examples}".encode())
        update(self._sample)
