"""Examples that come in one fixed order: a `tf.data.Dataset`, a generator, a `PyDataset`.

They are read in the order in which they come, which suffices for the batches of a fixed
epoch order: no copy on disk is needed, and no random access. The first reading, before
the run begins, counts the examples and keeps a hash of each. In later
passes, each place must hold the same example as before: a data set that shuffles
itself, augments at random or changes in between stops the pass, before the step is
taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf
import tqdm

from tf_bandmf.sampling.mapped import remarks_on
from tf_bandmf.sampling.passes import (
    ENDED,
    EXAMPLES_AT_ONCE,
    IF_BATCHES,
    VOUCHED_ROWS,
    functions_of,
    is_py_dataset,
    is_traced,
    opened,
)
from tf_bandmf.sampling.row_kinds import (
    Block,
    Leaves,
    ReadExamples,
    RowKinds,
    refuse_most_failed,
)


class StreamedExamples(ReadExamples):
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

    Raises:
      TypeError: if it is not such data, or yields anything but tensors.
      ValueError: if it has another number of examples, shapes vary, two passes differ, a
        function sees several examples, or an error leaves the places of the others unknown.
    """

    has_own_order = True
    _changed = (
        "The data set gave another example at place {place} than in its first pass: it "
        "shuffles itself, augments at random, or was changed. A pass must have the order "
        "of the first one. Leave shuffle() out, or shuffle once: dataset.shuffle(size, "
        "seed=1, reshuffle_each_iteration=False); augment by plan.batches(..., "
        "map=function)."
    )

    def __init__(
        self,
        data: Any,
        num_examples: int,
        *,
        batched: bool | None = None,
    ) -> None:
        self._passes = opened(data, int(num_examples), batched)
        self.remarks = remarks_on(functions_of(data))
        if not is_traced(data):
            self.remarks += (VOUCHED_ROWS,)
        super().__init__(RowKinds(self._passes.samples()), int(num_examples))
        self._refuse_other_order()
        self._read_all()
        self._reader: Iterator[Block] | None = None
        self._next, self._rest = 0, (self._kinds.blank(0), np.empty(0, bool))

    def _refuse_other_order(self) -> None:
        """Raises ValueError if the first examples do not come again."""
        first, again = (next(self._passes.blocks(self._kinds), None) for _ in range(2))
        assert first is not None and again is not None  # There are examples.
        if not first[1].all():
            self._passes.refuse_failures()
        one, other = (
            np.where(works, self._kinds.hashes(leaves), 0)
            for leaves, works in (first, again)
        )
        if not np.array_equal(one, other):
            raise ValueError(self._changed.format(place=0))

    def _read_all(self) -> None:
        """Reads all examples once: how many there are, and what they are."""
        place = 0
        shown = tqdm.tqdm(
            total=self.num_examples,
            desc="reading the examples once",
            delay=2.0,
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
                self._kept(place + np.arange(count), leaves, works)
                place += count
                shown.update(count)
        works = ~self._failed[:place]
        if place < self.num_examples and not works.all():
            raise ValueError(
                ENDED.format(
                    found=place, expected=self.num_examples, failed=(~works).sum()
                )
            )
        if place < self.num_examples:
            self._refuse_too_few(place)
        refuse_most_failed(works, "The data set")

    def _refuse_too_few(self, found: int) -> NoReturn:
        said = f"The plan is for {self.num_examples} examples, and the data set has {found}"
        rows = self._kinds.rows_of_each()
        if rows and 0 <= found * rows - self.num_examples < rows:
            raise ValueError(f"{said}, each of {rows} rows. {IF_BATCHES}")
        raise ValueError(f"{said}. Make a plan for this data set.")

    def _read(self, indices: np.ndarray) -> Block:
        """Neighboring examples, in the order of the data set."""
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
                count = min(EXAMPLES_AT_ONCE, first - self._next)
                places = self._next + np.arange(count)
                self._kept(places, *self._take(count))
        return self._take(end - first)

    def _kept(self, indices: np.ndarray, leaves: Leaves, works: np.ndarray) -> Block:
        try:
            return super()._kept(indices, leaves, works)
        except ValueError:
            self._reader = None
            raise

    def _take(self, count: int) -> Block:
        """The next examples of the pass."""
        assert self._reader is not None
        parts, missing = [self._rest], count - len(self._rest[1])
        while missing > 0:
            block = next(self._reader, None)
            if block is None:
                self._reader = None
                place = self._next + count - missing
                raise ValueError(self._changed.format(place=place))
            parts.append(block)
            missing -= len(block[1])
        leaves = [np.concatenate(same) for same in zip(*(part[0] for part in parts))]
        works = np.concatenate([part[1] for part in parts])
        self._rest = [leaf[count:] for leaf in leaves], works[count:]
        self._next += count
        return [leaf[:count] for leaf in leaves], works[:count]

    def update_digest(self, update: Callable[[Any], None]) -> None:
        update(f"streamed {self.num_examples} {self._kinds.kinds}".encode())
        update(self._hashes.tobytes())


def is_stream(data: Any) -> bool:
    """Whether data come in an order of their own, and not by index."""
    return isinstance(data, tf.data.Dataset) or is_py_dataset(data) or callable(data)
