"""Data sources that return rows by index: arrays, TFRecord files, indexable objects.

A row that cannot be read (a damaged image, or text in place of a number) becomes a row
of zeros with weight 0. The row can still be sampled, but adds nothing to the sum of
gradients. It does not end the run, because ending the run would reveal something about
the record (invariants 5 and 18 in `docs/guarantee.md`).
"""

from __future__ import annotations

import abc
import contextlib
import functools
import os
import statistics
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import scipy.sparse
import tensorflow as tf
import tqdm

from tf_bandmf.sampling import identity
from tf_bandmf.sampling.identity import INPUTS, SAMPLE_WEIGHT, TARGETS

OF_WEIGHTS = (
    "Weights of examples or classes are in use. If they were computed from private data "
    "(for example, from class frequencies), no noise hides them, and each record changes "
    "the weights of all other records."
)
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
# When all rows are read once, they are read in blocks of at most this many bytes.
_AT_ONCE = 1 << 22
# The number of evenly spaced examples that are read before a run begins, if reading all
# examples would take too long.
_PROBED = 256
# The number of examples that are read to find the most common shape and dtype, which all
# examples must have.
_SHOWN = 5


class ExampleSource(abc.ABC):
    """A data source that returns rows by index; rows must not change after a read.

    A row that cannot be read, or whose shape differs from the shape of most rows, does
    not end the run: from then on, it is an all-zero row with sample weight 0.

    Args:
      num_examples: m, the number of examples; each needs about 20 bytes of memory
        for its hashes.
      sample: contents of an example, which define the structure, shapes and dtypes that
        all examples must have.

    Attributes:
      in_order: True if rows can be read only in the order of the data set, which
        permits only `sampling="fixed-order"`.
      may_fail: True if some rows may be unreadable; batches then have sample weights.
      has_text_targets: True if the targets are strings, which no Keras loss accepts.
      parse: function that turns rows into examples, or None.
      remarks: sentences that the privacy statement of a run on these rows must contain.
    """

    in_order: ClassVar[bool] = False
    may_fail: ClassVar[bool] = False
    # The error message for changed rows; `{place}` is the index of the first such row.
    _changed: ClassVar[str]
    parse: Callable[[tf.Tensor], Any] | None = None
    remarks: tuple[str, ...] = ()

    def __init__(self, num_examples: int, sample: dict[str, Any]) -> None:
        self.num_examples = num_examples
        self._sample, self._kind = sample, _kind_of(sample)
        self.has_text_targets = str(self._kind.get(TARGETS)).startswith("object")
        weights = tf.nest.flatten(sample.get(SAMPLE_WEIGHT, ()))
        if any(weight.ndim == 1 for weight in weights):
            self.remarks = (*self.remarks, OF_WEIGHTS)
        self._lock = threading.Lock()
        self._failed, self._is_seen, self._has_nan = np.zeros([3, num_examples], bool)
        # `_hashes[0]` are record hashes, and `_hashes[1]` are row hashes. Both are only
        # set for rows that were read.
        self._hashes = np.zeros([2, num_examples], np.int64)
        # The rows whose hashes `update_digest` uses to distinguish data sets.
        self._probed = np.arange(num_examples)

    @abc.abstractmethod
    def _read(self, indices: np.ndarray) -> list[np.ndarray]:
        """Reads N >= 1 rows and returns their arrays, with zeros for unreadable rows.

        Unreadable rows are marked as failed.
        """

    def rows(self, indices: np.ndarray) -> list[np.ndarray]:
        """Returns the arrays of rows, followed by a mask of the readable rows.

        The mask is bool, shape [N].

        Args:
          indices: int64, shape [N], N >= 0.

        Raises:
          ValueError: if a row has changed.
        """
        *leaves, works = self._taken(indices)
        self._compare(indices, identity.row_hashes(leaves).numpy())
        return [*leaves, works]

    def _taken(self, indices: np.ndarray) -> list[np.ndarray]:
        """Returns rows as `rows` does, without checking them for changes.

        The method stores the hashes of rows that are read for the first time.
        """
        with self._lock:
            leaves = self._read(indices) if len(indices) else self._zeros(0)
            new = ~self._failed[indices] & ~self._is_seen[indices]
            if new.any():
                parts, places = [leaf[new] for leaf in leaves], indices[new]
                inputs = tf.nest.pack_sequence_as(self._sample, parts)[INPUTS]
                both = identity.record_hashes(inputs), identity.row_hashes(parts)
                self._hashes[:, places] = both
                self._has_nan[places] = rows_with_nan(parts)
                self._is_seen[places] = True
            return [*leaves, ~self._failed[indices]]

    def _compare(self, indices: np.ndarray, hashes: np.ndarray) -> None:
        """Raises ValueError if a readable row's hash differs from the stored hash."""
        changed = indices[(self._hashes[1, indices] != hashes) & ~self._failed[indices]]
        if changed.size:
            raise ValueError(self._changed.format(place=changed[0]))

    def seen(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the hashes of the rows read so far, and a mask of those with NaN."""
        return self._hashes[1, self._is_seen], self._has_nan[self._is_seen]

    def records(self) -> np.ndarray:
        """Returns the hashes of the input values of all rows that were read, int64."""
        return self._hashes[0, self._is_seen]

    def probed(self) -> np.ndarray:
        """Returns the indices of up to 256 evenly spaced rows."""
        return self._probed[:: -(-len(self._probed) // _PROBED)]

    def all_rows(self) -> Iterator[dict[str, Any]]:
        """Reads and hashes all rows; yields their contents, block by block."""
        size = sum(max(1, leaf.nbytes) for leaf in self._zeros(1))
        count = max(1, _AT_ONCE // size)
        starts = range(0, self.num_examples, count)
        for first in tqdm.tqdm(starts, desc="reading the examples once", delay=2.0):
            indices = np.arange(first, min(first + count, self.num_examples))
            yield tf.nest.pack_sequence_as(self._sample, self.rows(indices)[:-1])

    def gather(self, indices: tf.Tensor) -> dict[str, Any]:
        """Returns the `x` of rows, and their `y` and `sample_weight` if these exist.

        This method can be called in a graph.
        """
        kinds = [*self._zeros(0), np.zeros(0, bool)]
        dtypes = [tf.as_dtype(kind.dtype) for kind in kinds]
        leaves = tf.numpy_function(self._taken, [indices], dtypes)
        *leaves, works = (
            tf.ensure_shape(leaf, [None, *kind.shape[1:]])
            for leaf, kind in zip(leaves, kinds)
        )
        # Hashing in a graph is much faster than in eager mode.
        tf.numpy_function(self._compare, [indices, identity.row_hashes(leaves)], [])
        content = tf.nest.pack_sequence_as(self._sample, leaves)
        return with_weights(content, works) if self.may_fail else content

    def _zeros(self, count: int) -> list[np.ndarray]:
        def zeros(leaf: np.ndarray) -> np.ndarray:
            zero = b"" if leaf.dtype.hasobject else 0
            return np.full((count, *leaf.shape[1:]), zero, leaf.dtype)

        return [zeros(leaf) for leaf in tf.nest.flatten(self._sample)]

    def _checked(self, content: dict[str, Any]) -> list[np.ndarray]:
        leaves, kind = tf.nest.flatten(content), _kind_of(content)
        if kind != self._kind or len({len(leaf) for leaf in leaves}) > 1:
            raise ValueError(
                f"All examples must have the same structure, shapes and dtypes, found "
                f"{kind} after examples with {self._kind}. Pad or crop them to one shape."
            )
        return leaves

    def update_digest(self, update: Callable[[Any], None]) -> None:
        """Updates a hash object with bytes that identify the data and their order."""
        update(f"{type(self).__name__} {self.num_examples} {self._kind}".encode())
        update(self._hashes[1, self._probed].tobytes())


class IndexedExamples(ExampleSource):
    """Examples read by index, as in data sets of Grain, PyTorch and Hugging Face.

    An index must always return the same example. Random augmentation belongs in
    `plan.batches(..., map=function)`.

    Args:
      source: object that has a length, and whose item `source[i]` is one example: `x`,
        `(x, y)` or `(x, y, sample_weight)`. `source.__getitems__(list)`, if it exists,
        reads several examples in one call. Only one thread at a time reads the source.

    Raises:
      ValueError: if a row changes between two reads, or if at least half of the rows
        that are read before the run cannot be read.
    """

    may_fail = True
    _changed = (
        "Example {place} of the data set has changed since its first read. An index must "
        "always return the same example. To augment, use plan.batches(..., map=function)."
    )

    def __init__(self, source: Any) -> None:
        self._source = source
        # Pairs of neighbors are read, because equal neighbors reveal repeated rows.
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
                f"None of the examples of the data set that were tried can be read "
                f"({failure}). Read one yourself, as x[0], to see the whole error."
            )
        kinds = [str(_kind_of(content)) for content in contents]
        super().__init__(len(source), contents[kinds.index(statistics.mode(kinds))])
        self._probed = places
        # The first row is read twice, alone and in a batch, to detect random results.
        self.rows(places[:1])
        works = self.rows(places)[-1]
        if 2 * works.sum() <= works.size:
            raise ValueError(
                f"{(~works).sum()} of {works.size} inspected examples cannot be read, or "
                f"differ from the others in shape or dtype. Remove them, or pad or crop "
                f"them to one shape. (Fewer than half would be replaced by zeros.)"
            )

    def _content(self, indices: np.ndarray) -> dict[str, Any]:
        one_by_one = lambda places: [self._source[i] for i in places]  # noqa: E731
        read = getattr(self._source, "__getitems__", one_by_one)
        parts = [named_parts(row) for row in read(indices.tolist())]
        if len(parts) != len(indices):
            raise ValueError(f"__getitems__ gave {len(parts)} of {len(indices)} rows.")
        return tf.nest.map_structure(
            lambda *same: np.stack([as_array(row) for row in same]), *parts
        )

    def _read(self, indices: np.ndarray) -> list[np.ndarray]:
        if not self._failed[indices].any():
            # If a row is invalid, this call fails, and the rows are read one by one.
            with contextlib.suppress(Exception):
                return self._checked(self._content(indices))
        if len(indices) == 1:
            self._failed[indices] = True
            return self._zeros(1)
        one_by_one = [self._read(indices[i : i + 1]) for i in range(len(indices))]
        return [np.concatenate(same) for same in zip(*one_by_one)]


class TFRecordExamples(ExampleSource):
    """Records of TFRecord files, read by index; each record is one example.

    The constructor passes over the files once: it finds the position of every record,
    verifies checksums and computes hashes (about 50 bytes of memory per record). Each
    batch then reads only its own records, and raises an error if a file has changed
    since that pass. The order of the files and of their records is the order of the
    examples. The `schedule_id` of a run is a hash of every record and of the results of
    `parse` for a few records. It depends neither on the file names nor on which file
    contains which record.

    Args:
      files: paths of uncompressed TFRecord files on a mounted file system.
      parse: function of one serialized record, a string scalar, that returns `x`, `(x, y)`
        or `(x, y, sample_weight)` with static shapes; it runs in a graph. It must be a pure
        function, like `map` of `Plan.batches`. A record on which it fails becomes a row of
        zeros with weight 0.

    Raises:
      ValueError: if there are no records, or a file is not an uncompressed TFRecord file.
      FileNotFoundError: if a file is missing.
    """

    _changed = (
        "A TFRecord file was changed while it was in use: record {place} differs from "
        "the first read. Restore the file."
    )
    # A record in a file consists of its length, a checksum of the length, its bytes, and
    # their checksum.
    _BEFORE, _AFTER = 12, 4

    def __init__(self, files: Sequence[str], parse: Callable[[tf.Tensor], Any]) -> None:
        if isinstance(files, (str, os.PathLike)):
            files = [files]
        self.parse, self._files = parse, [os.fspath(file) for file in files]
        # For each record: the number of its file, and its offset and length in bytes.
        places: list[tuple[int, int, int]] = []
        shown = tqdm.tqdm(self._files, desc="finding the records", delay=2.0)
        for number, file in enumerate(shown):
            size, end = os.path.getsize(file), 0
            try:
                for batch in tf.data.TFRecordDataset(file).batch(_PROBED):
                    for length in tf.strings.length(batch).numpy().tolist():
                        places.append((number, end + self._BEFORE, length))
                        end += self._BEFORE + length + self._AFTER
            except tf.errors.DataLossError:
                end = -1
            if end != size:
                raise ValueError(
                    f"{file} is damaged, is being written, or is not an uncompressed "
                    f"TFRecord file. If the file is compressed, decompress it first."
                )
        if not places:
            raise ValueError(f"There are no records in {self._files}. Check the paths.")
        self._places = np.array(places, np.int64)
        super().__init__(len(places), {INPUTS: np.array([b""], object)})
        for _ in self.all_rows():
            pass

    def _read(self, indices: np.ndarray) -> list[np.ndarray]:
        records, places = np.empty(len(indices), object), self._places[indices]
        for number in np.unique(places[:, 0]):
            with open(self._files[number], "rb") as file:
                for place in np.flatnonzero(places[:, 0] == number):
                    file.seek(places[place, 1])
                    records[place] = file.read(places[place, 2])
        return [records]


class ArrayExamples(ExampleSource):
    """Examples in arrays, which are not copied.

    An `np.memmap`, such as `np.load(path, mmap_mode="r")`, stays on disk: each batch reads
    only its rows. SciPy's sparse matrices are converted to dense arrays batch by batch.

    Args:
      x: array or nested structure of arrays whose first axis is the axis of examples.
      y: targets, of the same form as x, or None.
      sample_weight: shape [num_examples] or None.
      num_examples: m, the length that every array must have.

    Raises:
      TypeError: if the data are not arrays.
      ValueError: if the length of an array differs from `num_examples`.
    """

    _changed = (
        "The arrays passed to plan.batches have changed since then, at index {place}: "
        "they were shuffled, scaled or filled in place, or a memmap's file changed. An "
        "index must return the same example during the whole run. Change arrays before "
        "plan.batches, and use plan.batches(..., map=function) for augmentation."
    )

    def __init__(self, x: Any, y: Any, sample_weight: Any, num_examples: int) -> None:
        given = {INPUTS: x, TARGETS: y, SAMPLE_WEIGHT: sample_weight}

        def columns(key: str, value: Any) -> Any:
            column = functools.partial(_column, key, num_examples)
            return tf.nest.map_structure(column, without_lists(value))

        self._arrays = {k: columns(k, v) for k, v in given.items() if v is not None}
        super().__init__(
            num_examples, tf.nest.map_structure(lambda a: _dense(a[:1]), self._arrays)
        )
        for _ in self.all_rows():
            pass

    def _read(self, indices: np.ndarray) -> list[np.ndarray]:
        return [_dense(array[indices]) for array in tf.nest.flatten(self._arrays)]

    def update_digest(self, update: Callable[[Any], None]) -> None:
        arrays = tf.nest.flatten(self._arrays)
        if any(map(scipy.sparse.issparse, arrays)):
            return super().update_digest(update)
        for array in arrays:
            update(f"{array.dtype} {array.shape}".encode())
            update(identity.bytes_of(array))


def _dense(rows: Any) -> np.ndarray:
    return rows.toarray() if scipy.sparse.issparse(rows) else np.asarray(rows)


def _column(key: str, num_examples: int, given: Any) -> Any:
    """Returns an argument of `plan.batches` as an array, after checking it."""
    is_read_once = any(hasattr(given, name) for name in ("__next__", "on_epoch_end"))
    if is_read_once or isinstance(given, (str, tf.data.Dataset)) or callable(given):
        raise TypeError(
            f"plan.batches needs arrays, but found {type(given).__name__}. Only x may "
            f"be a data set, not in a list or dictionary, that also yields the targets. "
            f"Instead of an iterator or generator, pass the function that makes it. "
            f"Instead of a path, pass tf_bandmf.sampling.TFRecordExamples(files, parse)."
        )
    array = given.tocsr() if scipy.sparse.issparse(given) else as_array(given)
    if array.shape[:1] != (num_examples,):
        raise ValueError(
            f"{key} must have {num_examples} rows (one per example of the plan, or one "
            f"per element of users), found shape {array.shape}. Make a plan for this "
            f"data set, or pass users= and rows_per_user= if users have several rows. If "
            f"{key} is a list of rows, pass np.stack({key}): a list means several inputs."
        )
    return array


def as_array(given: Any) -> np.ndarray:
    """Converts numbers to an array, and strings to an array of encoded strings (bytes).

    Raises:
      TypeError: if the value contains neither numbers nor strings.
    """
    kind = type(given)
    # These errors are suppressed because they may quote values of records.
    with contextlib.suppress(TypeError, ValueError):
        is_text = isinstance(given, (str, bytes))
        array = np.array(given, object) if is_text else np.asarray(given)
        if array.dtype.kind not in "USO":
            tf.as_dtype(array.dtype)
            return array
        others = [type(i) for i in array.ravel() if not isinstance(i, (str, bytes))]
        if not others:
            return np.array(tf.constant(array).numpy(), object)
        kind = others[0]
    raise TypeError(
        f"Examples must be arrays of numbers or strings whose rows have one shape, found "
        f"{kind.__name__}. If rows differ in length, pad them with x.to_tensor() or "
        f"keras.utils.pad_sequences(rows, padding='post'), and mask the padding in the "
        f"model. If columns differ in type, pass dict(dataframe): each column is an input. "
        f"If rows are sparse, pass one scipy.sparse.csr_matrix((values, indices.T), shape) "
        f"or dense rows: rows.toarray() or tf.sparse.to_dense(rows)."
    )


def without_lists(value: Any) -> Any:
    """Converts lists of numbers or strings to arrays, and other lists to tuples.

    tf.data interprets a list of tensors as one tensor, whereas Keras interprets the
    list as several inputs.
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
    """Returns the components of examples, keyed by their names in a batch.

    Args:
      given: x, (x, y) or (x, y, sample_weight).

    Raises:
      ValueError: if `given` is an empty tuple or has more than three components.
    """
    given = without_lists(given)
    parts = given if isinstance(given, tuple) else (given,)
    names = (INPUTS, TARGETS, SAMPLE_WEIGHT)
    if not 1 <= len(parts) <= len(names):
        raise ValueError(
            f"An example must be x, (x, y) or (x, y, sample_weight), found a tuple "
            f"with {len(parts)} parts. For several inputs, make x a dictionary."
        )
    return {name: part for name, part in zip(names, parts) if part is not None}


def said_of(error: BaseException) -> str:
    """Returns a description of an error that contains no values of records.

    The description is the error's type, followed by its message if this library raised
    it, or by its location otherwise. Messages of other code, including those of chained
    errors, may contain values of records. Therefore an error that quotes this
    description must be raised `from None`.
    """
    frames = traceback.extract_tb(error.__traceback__)
    # This library raised the error if the last stack frame is a line of this library
    # that contains `raise`. The frame alone does not show this: a function in C, such
    # as `int`, has no frame, so its error seems to come from the line that calls it.
    last = frames[-1]
    if last.filename.startswith(_OURS) and "raise " in (last.line or ""):
        return f"{type(error).__name__}: {error}"
    theirs = [f for f in frames if not f.filename.startswith(_OURS)]
    callers = [f for f in theirs if "site-packages" not in f.filename] or theirs
    where = [f", line {f.lineno} of {os.path.basename(f.filename)}" for f in callers]
    return "".join([type(error).__name__, *where[-1:]])


def rows_with_nan(leaves: Sequence[np.ndarray]) -> np.ndarray:
    """Returns whether each of N >= 1 rows contains NaN, bool, shape [N].

    If no leaf has a float dtype, the result is False, shape [].
    """
    floats = (leaf.reshape(len(leaf), -1) for leaf in leaves if leaf.dtype.kind == "f")
    return np.any([np.isnan(leaf).any(axis=1) for leaf in floats], axis=0)


def classes_of(content: dict[str, Any]) -> np.ndarray:
    """Returns the class number of each example, int64, shape [N].

    Targets that are neither class numbers nor one-hot vectors count as class 0.
    """
    targets: Any = content.get(TARGETS)
    count = len(tf.nest.flatten(content)[0])
    if not isinstance(targets, np.ndarray) or targets.dtype.kind not in "iubf":
        return np.zeros(count, np.int64)
    if targets.size == count:
        # Class numbers may be floats: binary targets are often 0.0 and 1.0.
        is_whole = np.mod(targets, 1) == 0
        return np.where(is_whole, targets, 0).reshape(-1).astype(np.int64)
    if targets.ndim == 2 and targets.size:
        is_one_hot = (targets.sum(axis=1) == 1.0) & (targets.max(axis=1) == 1.0)
        return np.where(is_one_hot, targets.argmax(axis=1), 0)
    return np.zeros(count, np.int64)


def with_weights(content: dict[str, Any], works: tf.Tensor) -> dict[str, Any]:
    """Returns the content with float32 sample weights; 0 where `works` is False."""
    weights = content.get(SAMPLE_WEIGHT, tf.ones_like(works, tf.float32))
    weights = tf.nest.map_structure(lambda w: tf.cast(w, tf.float32), weights)
    return {**content, SAMPLE_WEIGHT: zeros_unless(works, weights)}


def zeros_unless(works: tf.Tensor, structure: Any) -> Any:
    """Replaces rows of a structure by zeros where `works` (bool, [N]) is False."""

    def zeroed(rows: tf.Tensor) -> tf.Tensor:
        shaped = tf.reshape(works, [-1, *([1] * (rows.shape.rank - 1))])
        return tf.where(shaped, rows, tf.zeros_like(rows))

    return tf.nest.map_structure(zeroed, structure)


def _kind_of(content: dict[str, Any]) -> dict[str, Any]:
    return tf.nest.map_structure(lambda leaf: f"{leaf.dtype} {leaf.shape[1:]}", content)
