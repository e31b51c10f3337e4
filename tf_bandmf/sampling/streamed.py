"""Examples that come in one fixed order: a `tf.data.Dataset`, a generator, a `PyDataset`.

They are read in the order in which they come, which suffices for the batches of a fixed
epoch order: no copy on disk is needed, and no random access. The first reading, before
the run begins, counts the examples and keeps a digest of each (16 bytes). In later
passes, each place must hold the same example as before: a data set that shuffles
itself, augments at random or changes in between stops the pass, before the step is
taken.
"""

from __future__ import annotations

import hashlib
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf
import tqdm

from tf_bandmf.sampling.failing import FailedRecords
from tf_bandmf.sampling.passes import (
    ENDED,
    EXAMPLES_AT_ONCE,
    IF_BATCHES,
    Block,
    is_py_dataset,
    opened,
)
from tf_bandmf.sampling.record_identity import MOST_HASHES, record_hashes
from tf_bandmf.sampling.row_kinds import Leaves, RowKinds, refuse_most_failed
from tf_bandmf.sampling.sources import INPUTS, ExampleSource

_BYTES = 16
_CHANGED = (
    "The data set gave another example at place {place} than in its first pass: it "
    "shuffles itself, augments at random, or was changed. A pass must have the order of "
    "the first one. Leave shuffle() out, or shuffle once: dataset.shuffle(size, seed=1, "
    "reshuffle_each_iteration=False); augment by plan.batches(..., map=function)."
)


class StreamedExamples(ExampleSource):
    """Examples in the order in which a data set yields them.

        dataset = keras.utils.image_dataset_from_directory("images", shuffle=False)
        plan.batches(dataset)                      # sampling="fixed-order"

    `Plan.batches` creates it from a data set itself. WARNING: the order is the data
    set's. If it is sorted (by class, by date), shuffle it once, with a fixed seed.

    An example of a `tf.data.Dataset` of single examples that raises an error, or has
    another shape than most, does not end the run: it becomes a row of zeros with sample
    weight 0, and stays one; the others keep their places. Batches, a `PyDataset` and a
    function cannot be read further after an error: the first reading raises it.

    Args:
      data: yields `x`, `(x, y)` or `(x, y, sample_weight)`. A `tf.data.Dataset`, of
        single examples or of batches; a `keras.utils.PyDataset`, whose batches are taken
        apart; or a function without arguments that returns a new iterator of single
        examples each time it is called. All examples have one shape; sparse tensors
        become dense ones.
      num_examples: m, the plan's number of examples.
      batched: whether a `tf.data.Dataset` yields batches. By default, this is inferred
        from its first dimension (None: batches) and its length.
      progress: whether to show the progress of the first reading, if it takes longer
        than 2 seconds.

    Raises:
      TypeError: if it is not such data, or yields anything but tensors.
      ValueError: if it has another number of examples, most of them occur twice, shapes
        vary, two passes differ, or an error leaves the places of the others unknown.
    """

    has_own_order = True

    def __init__(
        self,
        data: Any,
        num_examples: int,
        *,
        batched: bool | None = None,
        progress: bool = True,
    ) -> None:
        self.num_examples = int(num_examples)
        self._passes = opened(data, self.num_examples, batched)
        self._lock = threading.Lock()
        self._kinds = RowKinds(self._passes.samples())
        self._digests = np.zeros((self.num_examples, _BYTES), np.uint8)
        self._records = np.empty(0, np.uint64)
        self.failed = FailedRecords(self.num_examples)
        self._refuse_other_order()
        self._read_all(progress)
        self._reader: Iterator[Block] | None = None
        self._next, self._rest = 0, (self._kinds.blank(0), np.empty(0, bool))

    def _refuse_other_order(self) -> None:
        """Raises ValueError if the first examples do not come again."""
        first, again = (next(self._passes.blocks(self._kinds), None) for _ in range(2))
        assert first is not None and again is not None  # There are examples.
        if not first[1].all():
            self._passes.refuse_failures()
        if not np.array_equal(_digests_of(*first), _digests_of(*again)):
            raise ValueError(_CHANGED.format(place=0))

    def _read_all(self, progress: bool) -> None:
        """Reads all examples once: how many there are, and what they are."""
        place, hashes, kept = 0, [self._records], 0
        shown = tqdm.tqdm(
            total=self.num_examples,
            desc="reading the examples once",
            delay=2.0,
            disable=not progress,
        )
        with shown:
            for leaves, works in self._passes.blocks(self._kinds):
                count = len(works)
                if place + count > self.num_examples:
                    raise ValueError(
                        f"The plan is for {self.num_examples} examples, and the data set "
                        f"has more. Make a plan for this data set; leave repeat() out."
                    )
                if not works.all():
                    self._passes.refuse_failures()
                self._digests[place : place + count] = _digests_of(leaves, works)
                self.failed.note(place + np.flatnonzero(~works))
                found = record_hashes(self._kinds.packed(leaves)[INPUTS]).numpy()
                hashes.append(found[works].view(np.uint64))
                kept += count
                if kept > MOST_HASHES:
                    hashes, kept = [np.unique(np.concatenate(hashes))[:MOST_HASHES]], 0
                place += count
                shown.update(count)
        works = ~self.failed.among(np.arange(place))
        if place < self.num_examples and not works.all():
            raise ValueError(
                ENDED.format(
                    found=place, expected=self.num_examples, failed=(~works).sum()
                )
            )
        if place < self.num_examples:
            self._refuse_too_few(place)
        refuse_most_failed(works, "The data set")
        self._records = np.unique(np.concatenate(hashes))[:MOST_HASHES]
        self._warn_of_repetitions(self._digests[works])

    def _refuse_too_few(self, found: int) -> NoReturn:
        said = f"The plan is for {self.num_examples} examples, and the data set has {found}"
        rows = self._kinds.rows_of_each()
        if rows and 0 <= found * rows - self.num_examples < rows:
            raise ValueError(f"{said}, each of {rows} rows. {IF_BATCHES}")
        raise ValueError(f"{said}. Make a plan for this data set.")

    def _warn_of_repetitions(self, digests: np.ndarray) -> None:
        distinct = len(np.unique(digests[:, :8].copy().view(np.uint64)))
        if distinct == len(digests):
            return
        if 2 * distinct <= len(digests):
            raise ValueError(
                "The data set yields most of its examples more than once in a pass: an "
                "example must take part once in an epoch. Leave repeat() out; the plan's "
                "epochs repeat it. If equal records are of different people, give arrays."
            )
        warnings.warn(
            "Some examples of the data set are equal. If they are one record that comes "
            "several times, the statement does not hold for it: what it hides is one "
            "example. Remove the repetitions, or make a plan whose unit is one user.",
            stacklevel=4,
        )

    def gather(self, indices: tf.Tensor) -> dict[str, Any]:
        """Neighboring examples, in the order of the data set; see the base class.

        Raises:
          InvalidArgumentError: when it is read, if the data set yields another example
            than in its first pass.
        """
        return self._kinds.gathered(self._rows, indices)

    def _rows(self, indices: np.ndarray) -> Block:
        with self._lock:
            if not len(indices):
                return self._kinds.blank(0), np.empty(0, bool)
            first, end = int(indices[0]), int(indices[-1]) + 1
            if not np.array_equal(indices, np.arange(first, end)):
                raise ValueError(
                    "A data set that is read in its own order has no other order. Use "
                    "tf_bandmf.sampling.cache_dataset(dataset, directory)."
                )
            if self._reader is None or first != self._next:
                self._reader, self._next = self._passes.blocks(self._kinds), 0
                self._rest = self._kinds.blank(0), np.empty(0, bool)
                while self._next < first:
                    self._take(min(EXAMPLES_AT_ONCE, first - self._next))
            return self._take(end - first)

    def _take(self, count: int) -> Block:
        """The next examples of the pass, which are what they were, or cannot be read."""
        assert self._reader is not None
        parts, missing = [self._rest], count - len(self._rest[1])
        while missing > 0:
            block = next(self._reader, None)
            if block is None:
                self._reader = None
                raise ValueError(_CHANGED.format(place=self._next + count - missing))
            parts.append(block)
            missing -= len(block[1])
        leaves = [np.concatenate(same) for same in zip(*(part[0] for part in parts))]
        works = np.concatenate([part[1] for part in parts])
        self._rest = [leaf[count:] for leaf in leaves], works[count:]
        taken, works = [leaf[:count] for leaf in leaves], works[:count]
        places = self._next + np.arange(count)
        same = (_digests_of(taken, works) == self._digests[places]).all(axis=1)
        # One that could not be read once stays a row of zeros.
        self.failed.note(places[~works])
        failed = self.failed.among(places)
        if not (same | failed).all():
            self._reader = None
            raise ValueError(
                _CHANGED.format(place=self._next + int(np.argmin(same | failed)))
            )
        if failed.any():
            taken = [leaf.copy() for leaf in taken]
            for leaf, blank in zip(taken, self._kinds.blank(1)):
                leaf[failed] = blank
        self._next += count
        return taken, ~failed

    def update_digest(self, update: Callable[[Any], None]) -> None:
        update(f"streamed {self.num_examples} {self._kinds.kinds}".encode())
        update(self._digests.tobytes())

    def recognized_by(self) -> Callable[[], np.ndarray]:
        records = self._records
        return lambda: records


def is_stream(data: Any) -> bool:
    """Whether data come in an order of their own, and not by index."""
    return isinstance(data, tf.data.Dataset) or is_py_dataset(data) or callable(data)


def _digests_of(leaves: Leaves, works: np.ndarray) -> np.ndarray:
    """A cryptographic digest of each example, uint8, shape [N, 16]; 0 for none."""
    columns = [
        [b"\0".join(np.ravel(row)) for row in leaf]
        if leaf.dtype == object
        else list(np.ascontiguousarray(leaf).reshape(len(leaf), -1))
        for leaf in leaves
    ]
    found = bytearray()
    for row in zip(*columns):
        digest = hashlib.blake2b(digest_size=_BYTES)
        for part in row:
            digest.update(part)
        found += digest.digest()
    digests = np.frombuffer(bytes(found), np.uint8).reshape(-1, _BYTES)
    return np.where(works[:, None], digests, 0)
