"""Examples that come in one fixed order: a `tf.data.Dataset`, a generator, a `PyDataset`.

They are read in the order in which they come, which suffices for the batches of a fixed
epoch order: no copy on disk is needed, and no random access. The first reading, before
the run begins, counts the examples and keeps a digest of each (16 bytes). In later passes
the example at a place must be the one that was there: a data set that shuffles itself,
augments at random or changes in between stops the pass, before the step is taken.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
import tqdm

from tf_bandmf.sampling.record_identity import MOST_HASHES, record_hashes
from tf_bandmf.sampling.sources import (
    INPUTS,
    SAMPLE_WEIGHT,
    TARGETS,
    ExampleSource,
    text_as_bytes,
)

_NAMES = (INPUTS, TARGETS, SAMPLE_WEIGHT)
_EXAMPLES_AT_ONCE = 256
_BYTES = 16
_CHANGED = (
    "The data set gave another example at place {place} than in its first pass: it "
    "shuffles itself, augments at random, or was changed. A pass must have the order of "
    "the first one. Leave shuffle() out, or shuffle once: dataset.shuffle(size, seed=1, "
    "reshuffle_each_iteration=False); augment by plan.batches(..., map=function)."
)

# A block of neighboring examples: leaves whose first dimension is the example.
_Block = list[np.ndarray]


class StreamedExamples(ExampleSource):
    """Examples in the order in which a data set yields them.

        dataset = keras.utils.image_dataset_from_directory("images", shuffle=False)
        plan.batches(dataset)                      # sampling="fixed-order"

    `Plan.batches` makes it of a data set by itself. WARNING: the order is the data set's.
    Where it is sorted (by class, by date), shuffle it once, with a fixed seed.

    Args:
      data: yields `x`, `(x, y)` or `(x, y, sample_weight)`. A `tf.data.Dataset`, of
        single examples or of batches; a `keras.utils.PyDataset`, whose batches are taken
        apart; or a function without arguments that returns a new iterator of single
        examples each time it is called. All examples have one shape; sparse tensors
        become dense ones.
      num_examples: m, as the plan has it.
      batched: whether a `tf.data.Dataset` yields batches. By default that is seen from
        its first dimension (None: batches) and its length.
      progress: show progress on the first reading, if it takes longer than 2 seconds.

    Raises:
      TypeError: if it is no such data, or yields something else than tensors.
      ValueError: if it does not have as many examples, most of them come twice, shapes
        vary, or two passes differ.
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
        self._blocks = _opened(data, self.num_examples, batched)
        self._lock = threading.Lock()
        self._structure, first = self._first_block()
        self._kinds = [(leaf.shape[1:], leaf.dtype) for leaf in first]
        self._digests = np.zeros((self.num_examples, _BYTES), np.uint8)
        self._records = np.empty(0, np.uint64)
        self._read_all(progress)
        self._reader: Iterator[_Block] | None = None
        self._next, self._rest = 0, [leaf[:0] for leaf in first]

    def _first_block(self) -> tuple[dict[str, Any], _Block]:
        """The structure of the examples and the first ones, which come again."""
        found = []
        for _ in range(2):
            block = next(iter(self._blocks()), None)
            if block is None:
                raise ValueError("The data set has no examples.")
            found.append(_leaves(block))
        if not np.array_equal(_digests_of(found[0]), _digests_of(found[1])):
            raise ValueError(_CHANGED.format(place=0))
        return _content(block), found[0]

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
            for leaves in self._all_leaves():
                count = len(leaves[0])
                if place + count > self.num_examples:
                    raise ValueError(
                        f"The plan is for {self.num_examples} examples, and the data set "
                        f"has more. Make a plan for this data set; leave repeat() out."
                    )
                self._digests[place : place + count] = _digests_of(leaves)
                inputs = tf.nest.pack_sequence_as(self._structure, leaves)[INPUTS]
                found = record_hashes(inputs).numpy().view(np.uint64)
                hashes.append(found)
                kept += count
                if kept > MOST_HASHES:
                    hashes, kept = [np.unique(np.concatenate(hashes))[:MOST_HASHES]], 0
                place += count
                shown.update(count)
        if place < self.num_examples:
            raise ValueError(
                f"The plan is for {self.num_examples} examples, and the data set has "
                f"{place}. Make a plan for this data set."
            )
        self._records = np.unique(np.concatenate(hashes))[:MOST_HASHES]
        distinct = len(np.unique(self._digests[:, :8].copy().view(np.uint64)))
        if distinct == self.num_examples:
            return
        if 2 * distinct <= self.num_examples:
            raise ValueError(
                "The data set yields most of its examples more than once in a pass: an "
                "example must take part once in an epoch. Leave repeat() out; the plan's "
                "epochs repeat it. If equal records are of different people, give arrays."
            )
        warnings.warn(
            "Some examples of the data set are equal. If they are one record that comes "
            "several times, the statement does not hold for it: what it hides is one "
            "example. Remove the repetitions, or make a plan whose unit is one user.",
            stacklevel=2,
        )

    def _all_leaves(self) -> Iterator[_Block]:
        """The blocks of a new pass, of the shapes and dtypes of the first one."""
        for block in self._blocks():
            leaves = _leaves(block)
            kinds = [(leaf.shape[1:], leaf.dtype) for leaf in leaves]
            if kinds != self._kinds:
                raise ValueError(
                    f"The examples must have one shape and dtype, found {kinds} after "
                    f"{self._kinds}. Pad or cut them to one shape."
                )
            yield leaves

    def gather(self, indices: tf.Tensor) -> dict[str, Any]:
        """Neighboring examples, in the order of the data set; see the base class.

        Raises:
          InvalidArgumentError: if the data set yields another example than in its first
            pass; when it is read.
        """
        dtypes = [tf.as_dtype(dtype) for _, dtype in self._kinds]
        found = tf.numpy_function(self._rows, [indices], dtypes)
        found = [found] if tf.is_tensor(found) else found  # eagerly, of one
        leaves = [
            tf.ensure_shape(leaf, [None, *shape])
            for leaf, (shape, _) in zip(found, self._kinds)
        ]
        return tf.nest.pack_sequence_as(self._structure, leaves)

    def _rows(self, indices: np.ndarray) -> _Block:
        with self._lock:
            if not len(indices):
                return [np.empty((0, *shape), dtype) for shape, dtype in self._kinds]
            first, end = int(indices[0]), int(indices[-1]) + 1
            if not np.array_equal(indices, np.arange(first, end)):
                raise ValueError(
                    "A data set that is read in its own order has no other order. Use "
                    "tf_bandmf.sampling.cache_dataset(dataset, directory)."
                )
            if self._reader is None or first != self._next:
                self._reader, self._next = self._all_leaves(), 0
                self._rest = [leaf[:0] for leaf in self._rest]
                while self._next < first:
                    self._take(min(_EXAMPLES_AT_ONCE, first - self._next))
            return self._take(end - first)

    def _take(self, count: int) -> _Block:
        """The next examples of the pass, which are what they were."""
        assert self._reader is not None
        parts, missing = [self._rest], count - len(self._rest[0])
        while missing > 0:
            block = next(self._reader, None)
            if block is None:
                self._reader = None
                raise ValueError(_CHANGED.format(place=self._next + count - missing))
            parts.append(block)
            missing -= len(block[0])
        leaves = [np.concatenate(same) for same in zip(*parts)]
        taken = [leaf[:count] for leaf in leaves]
        self._rest = [leaf[count:] for leaf in leaves]
        before = self._digests[self._next : self._next + count]
        same = (_digests_of(taken) == before).all(axis=1)
        if not same.all():
            self._reader = None
            raise ValueError(_CHANGED.format(place=self._next + int(np.argmin(same))))
        self._next += count
        return taken

    def update_digest(self, update: Callable[[Any], None]) -> None:
        update(f"streamed {self.num_examples} {self._kinds}".encode())
        update(self._digests.tobytes())

    def recognized_by(self) -> Callable[[], np.ndarray]:
        records = self._records
        return lambda: records


def is_stream(data: Any) -> bool:
    """Whether data come in an order of their own, and not by index."""
    return isinstance(data, tf.data.Dataset) or _is_py_dataset(data) or callable(data)


def _is_py_dataset(data: Any) -> bool:
    return hasattr(data, "__getitem__") and hasattr(data, "on_epoch_end")


def _opened(
    data: Any, num_examples: int, batched: bool | None
) -> Callable[[], Iterable[Any]]:
    """A function that begins a pass: blocks of `x`, `(x, y)` or `(x, y, weight)`."""
    if isinstance(data, tf.data.Dataset):
        return _blocks_of_dataset(data, num_examples, batched)
    if _is_py_dataset(data):
        return lambda: (data[i] for i in range(len(data)))
    if callable(data) and not isinstance(data, type):
        return lambda: _stacked(data())
    raise TypeError(
        f"A stream of examples must be a tf.data.Dataset, a PyDataset, or a function "
        f"that returns a new iterator, found {type(data).__name__}. A generator that has "
        f"begun can be read only once: give the function that makes it."
    )


def _blocks_of_dataset(
    dataset: tf.data.Dataset, num_examples: int, batched: bool | None
) -> Callable[[], Iterable[Any]]:
    if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise ValueError(
            "The data set is infinite: leave repeat() out. The plan's epochs repeat it."
        )
    if batched is None:
        batched = _is_batched(dataset, num_examples)
    if any(
        isinstance(spec, tf.RaggedTensorSpec)
        for spec in tf.nest.flatten(dataset.element_spec)
    ):
        raise ValueError(
            "The examples must be dense tensors of one shape, found ragged ones. Pad "
            "them, as with dataset.map and RaggedTensor.to_tensor(shape=...)."
        )
    options = tf.data.Options()
    options.deterministic = True
    dataset = dataset.map(_dense)
    if not batched:
        dataset = dataset.batch(_EXAMPLES_AT_ONCE)
    dataset = dataset.with_options(options)

    def blocks() -> Iterator[Any]:
        try:
            yield from dataset.as_numpy_iterator()
        except tf.errors.InvalidArgumentError as error:
            if "Cannot batch tensors with different shapes" not in str(error):
                raise
            raise ValueError(
                "The examples must have one shape: pad or cut them in dataset.map."
            ) from error

    return blocks


def _dense(*parts: Any) -> Any:
    made = tf.nest.map_structure(
        lambda leaf: (
            tf.sparse.to_dense(leaf) if isinstance(leaf, tf.SparseTensor) else leaf
        ),
        parts,
    )
    return made if len(made) > 1 else made[0]


def _is_batched(dataset: tf.data.Dataset, num_examples: int) -> bool:
    """Whether a data set yields batches, as far as shapes and its length say it.

    Raises:
      ValueError: if they do not.
    """
    shapes = [spec.shape for spec in tf.nest.flatten(dataset.element_spec)]
    if any(shape.rank == 0 for shape in shapes):
        return False
    first = {shape[0] if shape.rank else None for shape in shapes}
    length = int(dataset.cardinality())
    if first == {None}:
        return length != num_examples or num_examples == 1
    size = first.pop()
    if first or size is None or length == num_examples:
        return False
    if length >= 0 and length * size == num_examples:
        return True
    raise ValueError(
        f"Whether the data set yields examples or batches of {size} cannot be seen. Use "
        f"tf_bandmf.sampling.StreamedExamples(dataset, num_examples, batched=...), or "
        f"dataset.unbatch()."
    )


def _stacked(examples: Iterable[Any]) -> Iterator[Any]:
    """Blocks of single examples."""
    iterator = iter(examples)
    while block := list(itertools.islice(iterator, _EXAMPLES_AT_ONCE)):
        try:
            yield tf.nest.map_structure(lambda *same: np.stack(same), *block)
        except ValueError as error:
            raise ValueError(
                f"The examples must have one structure and one shape. Pad or cut them. "
                f"({error})"
            ) from error


def _content(block: Any) -> dict[str, Any]:
    parts = block if isinstance(block, (tuple, list)) else (block,)
    if not 1 <= len(parts) <= 3:
        raise ValueError(
            f"A data set must yield x, (x, y) or (x, y, sample_weight), found a tuple of "
            f"{len(parts)}. Use a dictionary for several inputs."
        )
    return {
        name: _without_lists(part)
        for name, part in zip(_NAMES, parts)
        if part is not None
    }


def _without_lists(value: Any) -> Any:
    """tf.data takes a list for one tensor, where Keras means several."""
    if isinstance(value, dict):
        return {name: _without_lists(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(_without_lists(item) for item in value)
    return value


def _leaves(block: Any) -> _Block:
    leaves = [_array(leaf) for leaf in tf.nest.flatten(_content(block))]
    sizes = {len(leaf) for leaf in leaves}
    if len(sizes) != 1:
        raise ValueError(
            f"Inputs, targets and weights must have as many rows, found {sorted(sizes)}."
        )
    return leaves


def _array(value: Any) -> np.ndarray:
    result = text_as_bytes(np.asarray(value))
    if not result.ndim:
        raise TypeError(
            f"A block of examples must have a first dimension, found the single value "
            f"{result[()]!r}."
        )
    return result


def _digests_of(leaves: _Block) -> np.ndarray:
    """A cryptographic digest of each example, uint8, shape [N, 16]."""
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
    return np.frombuffer(bytes(found), np.uint8).reshape(-1, _BYTES)
