"""Rows by index: arrays, or anything with a length and rows."""

from __future__ import annotations

import abc
import functools
import statistics
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import scipy.sparse
import tensorflow as tf
import tqdm

from tf_bandmf.sampling.failing import said_of
from tf_bandmf.sampling.identity import SeenRows

# Keys of the contents of a batch.
INPUTS, TARGETS, SAMPLE_WEIGHT = "x", "y", "sample_weight"
# In batches of clipping units of K rows alone: which rows are there, bool, shape [N, K].
ROWS = "rows"
# The largest part of the clip norm that an example may contribute, in [0, 1].
SHARE = "share"
CONTENT = (INPUTS, TARGETS, SAMPLE_WEIGHT, ROWS, SHARE)
OF_CLASS_WEIGHTS = (
    "Weights of classes are in use: where they were computed from private targets, no "
    "noise covers them, and each record changes the weight of all others."
)
# Bytes of rows that are read at once where all are read.
_AT_ONCE = 1 << 22
# Evenly spread examples that are looked at before a run begins, where all take too long.
_PROBED = 256
# Of so many examples, those of the most common shape and dtype show what examples are.
_SHOWN = 5


class ExampleSource(abc.ABC):
    """Rows by index, each of which stays what it was when it was first read.

    One that cannot be read, or has another shape, does not end the run: it becomes a row
    of zeros with sample weight 0, and stays one.

    Args:
      num_examples: m; some 20 bytes of memory for each.
      sample: content of some examples.

    Attributes:
      in_order: whether rows are read in the order of the data set alone: enough only for
        a fixed epoch order.
      may_fail: whether some row may be none; then there are sample weights.
      parse: a function that makes examples of the rows, or None.
      remarks: what the statement of a run on them must say, in sentences.
      seen: hashes of the rows that were read.
    """

    in_order: ClassVar[bool] = False
    may_fail: ClassVar[bool] = True
    # Of rows that are not what they were; the first one is at `{place}`.
    _changed: ClassVar[str]
    parse: Callable[[tf.Tensor], Any] | None = None
    remarks: tuple[str, ...] = ()

    def __init__(self, num_examples: int, sample: dict[str, Any]) -> None:
        self.num_examples = num_examples
        self._sample, self._kind = sample, _kind_of(sample)
        self._failed = np.zeros(num_examples, bool)
        self._lock = threading.Lock()
        self.seen = SeenRows(num_examples)
        # By which rows data sets are told apart.
        self._probed = np.arange(num_examples)

    @abc.abstractmethod
    def _read(self, indices: np.ndarray) -> list[np.ndarray]:
        """Leaves of rows, N >= 1; zeros for those that failed, which it notes."""

    def rows(self, indices: np.ndarray) -> list[np.ndarray]:
        """Leaves of rows, and which of them are some, bool, shape [N].

        Args:
          indices: int64, shape [N], N >= 0.

        Raises:
          ValueError: if a row is not what it was.
        """
        with self._lock:
            leaves = self._read(indices) if len(indices) else self._zeros(0)
            works = ~self._failed[indices]
            if works.any():
                parts = [leaf[works] for leaf in leaves]
                inputs = tf.nest.pack_sequence_as(self._sample, parts)[INPUTS]
                changed = self.seen.changed(indices[works], inputs, parts)
                if changed.size:
                    raise ValueError(self._changed.format(place=changed[0]))
            return [*leaves, works]

    def probed_rows(self) -> list[np.ndarray]:
        """`rows` that are spread over the data set, a few hundred at most."""
        return self.rows(self._probed[:: -(-len(self._probed) // _PROBED)])

    def read_all(self) -> None:
        """Reads all rows, so that all hashes are there."""
        size = sum(max(1, leaf.nbytes) for leaf in self._zeros(1))
        count = max(1, _AT_ONCE // size)
        starts = range(0, self.num_examples, count)
        for first in tqdm.tqdm(starts, desc="reading the examples once", delay=2.0):
            self.rows(np.arange(first, min(first + count, self.num_examples)))

    def gather(self, indices: tf.Tensor) -> dict[str, Any]:
        """`rows` in a graph: `x`, and `y` and `sample_weight` if there are any."""
        kinds = [*self._zeros(0), np.zeros(0, bool)]
        dtypes = [tf.as_dtype(kind.dtype) for kind in kinds]
        leaves = tf.numpy_function(self.rows, [indices], dtypes)
        *leaves, works = (
            tf.ensure_shape(leaf, [None, *kind.shape[1:]])
            for leaf, kind in zip(leaves, kinds)
        )
        content = tf.nest.pack_sequence_as(self._sample, leaves)
        return with_weights(content, works) if self.may_fail else content

    def _zeros(self, count: int) -> list[np.ndarray]:
        leaves = tf.nest.flatten(self._sample)
        zeros = [b"" if leaf.dtype.hasobject else 0 for leaf in leaves]
        return [
            np.full((count, *leaf.shape[1:]), zero, leaf.dtype)
            for leaf, zero in zip(leaves, zeros)
        ]

    def _checked(self, content: dict[str, Any]) -> list[np.ndarray]:
        leaves, kind = tf.nest.flatten(content), _kind_of(content)
        if kind != self._kind or len({len(leaf) for leaf in leaves}) > 1:
            raise ValueError(
                f"The examples must have one structure, shape and dtype, found {kind} "
                f"after {self._kind}. Pad or cut them to one shape."
            )
        return leaves

    def update_digest(self, update: Callable[[Any], None]) -> None:
        """Feeds bytes to a hash that differ if the data do, or their order."""
        update(f"{type(self).__name__} {self.num_examples} {self._kind}".encode())
        update(self.seen.hashes[self._probed, 1].tobytes())


class IndexedExamples(ExampleSource):
    """Whatever has a length and rows by index, as in Grain, PyTorch and Hugging Face.

    An index must always give the same example: random augmentation belongs in
    `plan.batches(..., map=function)`.

    Args:
      source: has `len(source)`, and `source[i]` is `x`, `(x, y)` or
        `(x, y, sample_weight)` of one example; with `source.__getitems__(list)`, several
        are read at once. One thread at a time reads it.

    Raises:
      ValueError: if rows differ from one reading to the next, or half of those that are
        tried first cannot be read.
    """

    _changed = (
        "The data set gives something else for example {place} than before. An index must "
        "mean one example: augment in plan.batches(..., map=function)."
    )

    def __init__(self, source: Any) -> None:
        self._source = source
        # Pairs of neighbors, which are equal where rows were repeated.
        first = np.linspace(0, len(source) - 1, _PROBED // 2).astype(np.int64)
        places = np.unique([first, np.minimum(first + 1, len(source) - 1)])
        contents, failure = [], ""
        for place in places:
            try:
                contents.append(self._content(place[None]))
            except Exception as error:
                failure = said_of(error)
            if len(contents) == _SHOWN:
                break
        if not contents:
            raise ValueError(
                f"No example of the data set that was tried can be read ({failure}). Try "
                f"data[0] to see why."
            )
        kinds = [str(_kind_of(content)) for content in contents]
        super().__init__(len(source), contents[kinds.index(statistics.mode(kinds))])
        self._probed = places
        self.rows(self._probed[:1])  # alone, then beside others
        works = self.rows(self._probed)[-1]
        if 2 * works.sum() <= works.size:
            raise ValueError(
                f"{(~works).sum()} of {works.size} examples that were tried cannot be "
                f"read, or have another shape or dtype than others: pad or cut them. A few "
                f"that cannot be read count zero, but not most of them."
            )

    def _content(self, indices: np.ndarray) -> dict[str, Any]:
        one_by_one = lambda places: [self._source[i] for i in places]  # noqa: E731
        read = getattr(self._source, "__getitems__", one_by_one)
        parts = [named_parts(row) for row in read(indices.tolist())]
        if len(parts) != len(indices):
            raise ValueError(f"__getitems__ must return {len(indices)} rows.")
        return tf.nest.map_structure(
            lambda *same: np.stack([as_array(row) for row in same]), *parts
        )

    def _read(self, indices: np.ndarray) -> list[np.ndarray]:
        if not self._failed[indices].any():
            try:
                return self._checked(self._content(indices))
            except Exception:  # which may be of one example
                pass
        leaves = self._zeros(len(indices))
        for place in np.flatnonzero(~self._failed[indices]):
            try:
                rows = self._checked(self._content(indices[place : place + 1]))
            except Exception:
                self._failed[indices[place]] = True
                continue
            for leaf, row in zip(leaves, rows):
                leaf[place] = row[0]
        return leaves


class ArrayExamples(ExampleSource):
    """Examples in arrays, which stay where they are.

    An `np.memmap`, such as `np.load(path, mmap_mode="r")`, stays on disk: each batch reads
    its own rows. Sparse matrices of SciPy become dense batch by batch.

    Args:
      x: array or nested structure of arrays whose first dimension is the example.
      y: targets, likewise, or None.
      sample_weight: shape [num_examples] or None.
      num_examples: m that every array must have.

    Raises:
      TypeError: if the data are not arrays.
      ValueError: if an array has another number of examples.
    """

    may_fail = False
    _changed = (
        "The arrays that plan.batches was given are not what they were, at place {place}: "
        "something wrote into them (shuffled, scaled or filled them in place, or changed "
        "the file of a memmap). An index must mean one example in all of a run. Make "
        "changes before plan.batches, and augment by plan.batches(..., map=function)."
    )

    def __init__(self, x: Any, y: Any, sample_weight: Any, num_examples: int) -> None:
        given = {INPUTS: x, TARGETS: y, SAMPLE_WEIGHT: sample_weight}
        self._arrays = {
            key: tf.nest.map_structure(
                functools.partial(_column, key, num_examples), without_lists(value)
            )
            for key, value in given.items()
            if value is not None
        }
        super().__init__(
            num_examples, tf.nest.map_structure(lambda a: _dense(a[:1]), self._arrays)
        )
        if self._weighs_classes():
            self.remarks = (OF_CLASS_WEIGHTS,)
        self.read_all()

    def _read(self, indices: np.ndarray) -> list[np.ndarray]:
        return [_dense(array[indices]) for array in tf.nest.flatten(self._arrays)]

    def _weighs_classes(self) -> bool:
        """Whether sample weights are those of the classes of the targets."""
        y, weight = map(self._arrays.get, (TARGETS, SAMPLE_WEIGHT))
        if not all(getattr(a, "size", 0) == self.num_examples for a in (y, weight)):
            return False
        classes, number = np.unique(np.asarray(y), return_inverse=True)
        weights, kind = np.unique(np.asarray(weight), return_inverse=True)
        pairs = np.unique(number.ravel() * len(weights) + kind.ravel())
        is_function = len(pairs) == len(classes) <= self.num_examples // 2
        return is_function and len(weights) > 1

    def update_digest(self, update: Callable[[Any], None]) -> None:
        arrays = tf.nest.flatten(self._arrays)
        if any(map(scipy.sparse.issparse, arrays)):
            return super().update_digest(update)
        for array in arrays:
            update(f"{array.dtype} {array.shape}".encode())
            flat = np.ascontiguousarray(array).ravel()
            is_text = array.dtype == object
            update(b"\0".join(flat) if is_text else flat.view(np.uint8).data)


def _dense(rows: Any) -> np.ndarray:
    return rows.toarray() if scipy.sparse.issparse(rows) else np.asarray(rows)


def _column(key: str, num_examples: int, given: Any) -> Any:
    """An array of the arguments of `plan.batches`, checked."""
    name = type(given).__name__
    if (
        isinstance(given, (str, tf.data.Dataset))
        or callable(given)
        or any(hasattr(given, name) for name in ("__next__", "on_epoch_end"))
    ):
        raise TypeError(
            f"plan.batches needs arrays, or one data set with its targets in it and not "
            f"within a structure, found {name}. What can be read once is given as the "
            f"function that makes it; TFRecord files as "
            f"tf_bandmf.sampling.TFRecordExamples(files, parse)."
        )
    array = given.tocsr() if scipy.sparse.issparse(given) else as_array(given)
    if array.shape[:1] != (num_examples,):
        raise ValueError(
            f"The plan is for {num_examples} examples, found {key} of shape {array.shape}. "
            f"Arrays must have a row for each example (a list of arrays means several "
            f"inputs: np.stack rows, or keras.utils.pad_sequences). Make a plan for this "
            f"data set, or, if users have several rows, give users= and rows_per_user=."
        )
    return array


def as_array(given: Any) -> np.ndarray:
    """Numbers as they are; texts as TensorFlow holds them, in an array of bytes objects.

    Raises:
      TypeError: if it is something else.
    """
    kind = None
    try:
        is_text = isinstance(given, (str, bytes))
        array = np.array(given, object) if is_text else np.asarray(given)
        if array.dtype.kind not in "USO":
            tf.as_dtype(array.dtype)
            return array
        items = array.ravel()
        kind = next((type(i) for i in items if not isinstance(i, (str, bytes))), None)
        if kind is None:
            texts = np.empty(items.shape, object)
            texts[:] = [i if isinstance(i, bytes) else str(i).encode() for i in items]
            return texts.reshape(array.shape)
    except (TypeError, ValueError):  # whose texts would hold values of records
        pass
    raise TypeError(
        f"Examples must be arrays of numbers or of texts in rows of one shape, found "
        f"{(kind or type(given)).__name__}. Pad rows of other lengths (x.to_tensor() or "
        f"keras.utils.pad_sequences(rows, padding='post')), and let the model mask what "
        f"was padded. Columns of different types are several inputs: dict(frame). Sparse "
        f"rows: scipy.sparse.csr_matrix((values, indices.T), shape) is read batch by "
        f"batch; single ones are made dense, by rows.toarray() or tf.sparse.to_dense."
    ) from None


def without_lists(value: Any) -> Any:
    """A list of numbers or texts, or of lists of them, as an array; others as tuples.

    tf.data takes a list of tensors for one tensor, where Keras means several inputs.
    """
    if isinstance(value, dict):
        return {name: without_lists(item) for name, item in value.items()}
    if isinstance(value, list):
        leaves = tf.nest.flatten(value)
        if all(isinstance(leaf, (bool, int, float, str, bytes)) for leaf in leaves):
            return as_array(value)
    if isinstance(value, (list, tuple)):
        return tuple(map(without_lists, value))
    return value


def named_parts(given: Any) -> dict[str, Any]:
    """The parts of examples by the names that contents have.

    Args:
      given: x, (x, y) or (x, y, sample_weight).

    Raises:
      ValueError: if there are none, or more.
    """
    given = without_lists(given)
    parts = given if isinstance(given, tuple) else (given,)
    names = (INPUTS, TARGETS, SAMPLE_WEIGHT)
    if not 1 <= len(parts) <= len(names):
        raise ValueError(
            f"An example must be x, (x, y) or (x, y, sample_weight), found a tuple of "
            f"{len(parts)}. Use a dictionary for several inputs."
        )
    return {name: part for name, part in zip(names, parts) if part is not None}


def with_weights(content: dict[str, Any], works: tf.Tensor) -> dict[str, Any]:
    """Rows with the weight 0 where they are none, as float32."""
    weights = content.get(SAMPLE_WEIGHT, tf.ones_like(works, tf.float32))
    weights = tf.nest.map_structure(lambda w: tf.cast(w, tf.float32), weights)
    return {**content, SAMPLE_WEIGHT: zeros_unless(works, weights)}


def zeros_unless(works: tf.Tensor, structure: Any) -> Any:
    """Rows of zeros where they do not work, bool, shape [N]."""

    def zeroed(rows: tf.Tensor) -> tf.Tensor:
        shaped = tf.reshape(works, [-1, *([1] * (rows.shape.rank - 1))])
        return tf.where(shaped, rows, tf.zeros_like(rows))

    return tf.nest.map_structure(zeroed, structure)


def _kind_of(content: dict[str, Any]) -> dict[str, Any]:
    return tf.nest.map_structure(lambda leaf: f"{leaf.dtype} {leaf.shape[1:]}", content)
