"""Examples that can be read by index, which is what every sampler needs."""

from __future__ import annotations

import abc
import functools
import types
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple

import numpy as np
import tensorflow as tf

from tf_bandmf.sampling.purity import refused_operation
from tf_bandmf.sampling.record_identity import (
    MOST_HASHES,
    SeenRecords,
    hash_rows,
    probed_places,
    record_hashes,
)

# Keys of the contents of a batch.
INPUTS, TARGETS, SAMPLE_WEIGHT = "x", "y", "sample_weight"
# In batches of clipping units of K rows alone: which rows are there, bool, shape [N, K].
ROWS = "rows"
# The largest part of the clip norm that an example may contribute, in [0, 1].
SHARE = "share"
CONTENT = (INPUTS, TARGETS, SAMPLE_WEIGHT, ROWS, SHARE)
_EXAMPLES_AT_ONCE = 4096
# Examples of a caller's source that are read alone and beside others.
_COMPARED = 4
_CHANGED = (
    "The arrays that plan.batches was given are not what they were: something wrote into "
    "them (shuffled, scaled or filled them in place, or changed the file of a memmap). An "
    "index must mean one example in all of a run. Give arrays that nobody writes into, "
    "make changes before plan.batches, and augment by plan.batches(..., map=function)."
)


class Draw(NamedTuple):
    """What random numbers of a step follow from, beside the examples' ids.

    Attributes:
      step: of the run, int64 scalar.
      base: int64, shape [2], of the run.
    """

    step: tf.Tensor
    base: np.ndarray

    def seeds(self, indices: tf.Tensor, views: int = 1) -> tf.Tensor:
        """A seed for each view of each example, for `tf.random.stateless_*`.

        Args:
          indices: of the examples, int64, shape [N].
          views: of each.

        Returns:
          int64, shape [N * views, 2]; views of one example are neighbors.
        """
        ids = tf.repeat(tf.cast(indices, tf.int64), views)
        view = tf.math.floormod(tf.range(tf.size(ids, tf.int64), dtype=tf.int64), views)
        same = [*self.base.tolist(), tf.cast(self.step, tf.int64)]
        columns = [tf.fill(tf.shape(ids), tf.cast(value, tf.int64)) for value in same]
        words = tf.stack([*columns, ids, view], axis=1)
        two = (tf.pad(words, [[0, 0], [0, 1]], constant_values=c) for c in (0, 1))
        return tf.stack([hash_rows(part) for part in two], axis=1)


class ExampleSource(abc.ABC):
    """A data set of known size whose examples can be read in any order.

    Attributes:
      num_examples: m.
      has_own_order: whether only neighbors can be read, in the order of the data set:
        enough only for a fixed epoch order.
      ranges: the declared ones, "x" and "y"; see `ranges.RangedExamples`.
    """

    num_examples: int
    has_own_order: bool = False
    ranges: Mapping[str, Any] = types.MappingProxyType({})

    @abc.abstractmethod
    def gather(self, indices: tf.Tensor) -> dict[str, Any]:
        """Examples, also in a graph: `x`, and `y` and `sample_weight` if there are any.

        AutoGraph does not convert it: for `if` and `for` on tensors, use a
        `tf.function`. An example must be a function of its index, whatever other
        examples are read with it: variables that are assigned, random numbers and
        Python code are refused. For Python code there is `IndexedExamples`.

        Args:
          indices: int64, shape [N], N >= 0.

        Returns:
          Structures of tensors whose first dimension is N.
        """

    def drawn(self, indices: tf.Tensor, draw: Draw, views: int = 1) -> dict[str, Any]:
        """`gather` at a step, each example `views` times, one after another.

        Args:
          indices: int64, shape [N], N >= 0.
          draw: for random numbers; unless overridden, an example is the same each time.
          views: of each example.

        Returns:
          Structures of tensors whose first dimension is N * views.
        """
        del draw
        return repeated(one_row_each(self.gather(indices), indices), views)

    def weighted(
        self, weigh: Callable[[ExampleSource], ExampleSource]
    ) -> ExampleSource:
        """What `weigh` makes of the rows of this source, which are its examples here."""
        return weigh(self)

    @abc.abstractmethod
    def update_digest(self, update: Callable[[Any], None]) -> None:
        """Feeds bytes to a hash that differ if the data do, or their order."""

    def recognized_by(self) -> Callable[[], np.ndarray]:
        """Gives hashes of the examples' inputs, to recognize those of another run.

        The result, hashes of `record_identity.record_hashes` as uint64, may grow as
        examples are read; it keeps no examples alive.

        Unless overridden, it reads evenly spread examples for this.
        """
        places = probed_places(self.num_examples)
        seen = SeenRecords(len(places))
        with tf.init_scope():
            indices = tf.constant(places)
            inputs = one_row_each(self.gather(indices), indices)[INPUTS]
            seen.note(np.arange(len(places)), record_hashes(inputs).numpy())
        return seen.hashes


class WrappedExamples(ExampleSource):
    """Examples of another source, which are changed as they are read.

    Number, order, declared ranges, digest and hashes are those of the other source,
    unless overridden.

    Args:
      examples: what is read.
    """

    def __init__(self, examples: ExampleSource) -> None:
        self._examples = examples
        self.num_examples = examples.num_examples
        self.has_own_order, self.ranges = examples.has_own_order, examples.ranges

    def update_digest(self, update: Callable[[Any], None]) -> None:
        self._examples.update_digest(update)

    def recognized_by(self) -> Callable[[], np.ndarray]:
        return self._examples.recognized_by()


class CheckedExamples(WrappedExamples):
    """Examples of a caller's source: whatever graph reads them is looked at before it runs.

    That examples do not depend on others that are read with them is tried with a few.

    Args:
      examples: the source.

    Raises:
      ValueError: here, or when a batch is made, if the source assigns variables, draws
        random numbers or runs Python code, which is not seen; or if an example is another
        one when others are read with it.
      InvalidArgumentError: if it does not give one row for each example.
    """

    def __init__(self, examples: ExampleSource) -> None:
        super().__init__(examples)
        some = tf.TensorSpec([None], tf.int64)
        self._refuse_mixing(self._traced(examples.gather, some))
        self._traced(
            self._drawn(np.zeros(2, np.int64)), some, tf.TensorSpec([], tf.int64)
        )

    def gather(self, indices: tf.Tensor) -> dict[str, Any]:
        return self._read(self._examples.gather, indices)

    def drawn(self, indices: tf.Tensor, draw: Draw, views: int = 1) -> dict[str, Any]:
        return self._read(self._drawn(draw.base, views), indices, draw.step)

    def weighted(
        self, weigh: Callable[[ExampleSource], ExampleSource]
    ) -> ExampleSource:
        return checked(self._examples.weighted(lambda rows: weigh(checked(rows))))

    def _drawn(self, base: np.ndarray, views: int = 1) -> Callable[..., dict[str, Any]]:
        def drawn(indices: tf.Tensor, step: tf.Tensor) -> dict[str, Any]:
            return self._examples.drawn(indices, Draw(step, base), views)

        return drawn

    def _read(self, function: Callable[..., Any], *given: Any) -> dict[str, Any]:
        tensors = [tf.convert_to_tensor(value, tf.int64) for value in given]
        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]
        return self._traced(function, *specs)(*tensors)

    def _refuse_mixing(self, read: Callable[[tf.Tensor], Any]) -> None:
        """Raises ValueError if some examples differ from what each of them is alone."""
        places = np.unique(np.linspace(0, self.num_examples - 1, _COMPARED, dtype="i8"))
        content = one_row_each(read(tf.constant(places)), tf.constant(places))
        together = tf.nest.flatten(content)
        for row, place in enumerate(places):
            alone = tf.nest.flatten(read(tf.constant(place[None])))
            if not all(_is_row(leaf[row], own) for leaf, own in zip(together, alone)):
                raise ValueError(
                    f"{type(self._examples).__name__}: example {place} is another one when "
                    f"others are read with it. An index must mean one example: change "
                    f"each by itself, in plan.batches(..., map=function)."
                )

    def _traced(self, function: Callable[..., Any], *specs: tf.TensorSpec) -> Any:
        traced = tf.function(function, autograph=False).get_concrete_function(*specs)
        state = refused_operation(traced.graph)
        if state is not None:
            raise ValueError(
                f"{type(self._examples).__name__} uses {state}: an index must mean one "
                f"example, whatever was read before. Augment by plan.batches(..., "
                f"map=function), whose seed is repeatable; read with Python code by "
                f"tf_bandmf.sampling.IndexedExamples, which compares what comes back."
            )
        return traced


def _is_row(row: tf.Tensor, alone: tf.Tensor) -> bool:
    """Whether one row is what was read, up to the rounding of other sizes of a batch."""
    found, expected = row.numpy(), alone.numpy()[0]
    if row.dtype.is_floating or row.dtype.is_complex:
        return bool(np.allclose(found, expected, 1e-3, 1e-6, equal_nan=True))
    return bool(np.array_equal(found, expected))


def checked(source: ExampleSource) -> ExampleSource:
    """A source of this library as it is; `CheckedExamples` of any other."""
    is_ours = type(source).__module__.startswith("tf_bandmf.")
    return source if is_ours else CheckedExamples(source)


def one_row_each(
    content: dict[str, Any],
    drawn: tf.Tensor,
    message: str = "The source of the examples must give one row for each example drawn.",
) -> dict[str, Any]:
    """Raises InvalidArgumentError with a message if there are not as many rows as drawn."""
    count = tf.shape(drawn)[0]

    def checked(tensor: tf.Tensor) -> tf.Tensor:
        same = tf.equal(tf.shape(tensor)[0], count)
        with tf.control_dependencies([tf.debugging.Assert(same, [message])]):
            return tf.identity(tensor)

    return tf.nest.map_structure(checked, content)


def named_parts(parts: Sequence[Any], said: str) -> dict[str, Any]:
    """The parts of examples by the names that contents have.

    Args:
      parts: x, (x, y) or (x, y, sample_weight).
      said: who gave them, and that they must be so, for the message.

    Raises:
      ValueError: if there are none, or more.
    """
    names = (INPUTS, TARGETS, SAMPLE_WEIGHT)
    if not 1 <= len(parts) <= len(names):
        raise ValueError(
            f"{said} x, (x, y) or (x, y, sample_weight), found a tuple of {len(parts)}. "
            f"Use a dictionary for several inputs."
        )
    return dict(zip(names, parts))


def repeated(content: dict[str, Any], views: int) -> dict[str, Any]:
    """Each row so many times, one after the other."""
    if views == 1:
        return content
    return tf.nest.map_structure(lambda t: tf.repeat(t, views, axis=0), content)


def text_as_bytes(array: np.ndarray) -> np.ndarray:
    """Texts as TensorFlow holds them, an array of bytes objects; numbers as they are.

    Raises:
      TypeError: if there are other objects in the array.
    """
    if array.dtype.kind not in "USO":
        return array
    items = array.ravel()
    if not all(isinstance(item, (str, bytes)) for item in items):
        raise TypeError(
            f"Examples must be numbers or texts in rows of one shape, found objects of "
            f"type {type(items[0]).__name__}: pad rows to one shape and use np.stack."
        )
    found = np.empty(items.shape, object)
    found[:] = [i if isinstance(i, bytes) else str(i).encode() for i in items]
    return found.reshape(array.shape)


def _as_tensor(array: Any) -> tf.Tensor:
    """An array as a tensor.

    Raises:
      TypeError: if it is none of numbers or texts.
    """
    if isinstance(array, tf.SparseTensor):
        raise TypeError(
            "A schedule reads dense rows, found a SparseTensor. Give the matrix as "
            "scipy.sparse.csr_matrix((values, indices.T), shape), which becomes dense "
            "batch by batch, or tf.sparse.to_dense(x)."
        )
    _refuse_ragged("an array", array)
    try:
        return tf.convert_to_tensor(array)
    except (TypeError, ValueError):
        # Its text, and the chain of errors, would hold values of records.
        raise TypeError(
            f"A schedule needs arrays of numbers or of texts, found a "
            f"{type(array).__name__} of others. Columns of different types are "
            f"several inputs: give a dictionary of them, as with dict(frame)."
        ) from None


def _refuse_ragged(name: str, rows: Any) -> None:
    """Raises TypeError if rows are arrays or lists of different lengths."""
    is_ragged = isinstance(rows, tf.RaggedTensor)
    is_objects = isinstance(rows, np.ndarray) and rows.dtype.kind == "O" and rows.ndim
    if is_objects or isinstance(rows, (list, tuple)):
        kinds = (np.ndarray, list, tuple, tf.Tensor)
        all_rows = all(
            isinstance(row, kinds) and getattr(row, "ndim", 1) for row in rows
        )
        is_ragged = all_rows and len({len(row) for row in rows}) > 1
    if is_ragged:
        raise TypeError(
            f"Rows must have one shape, found {name} with rows of different lengths. Pad "
            f"them (keras.utils.pad_sequences(rows, padding='post') for arrays, "
            f"x.to_tensor() for a RaggedTensor), and let the model mask what was padded "
            f"(Embedding(..., mask_zero=True), or a Masking layer)."
        )


class ArrayExamples(ExampleSource):
    """Examples in arrays.

    Arrays in memory become tensors on the host. An `np.memmap`, such as
    `np.load(path, mmap_mode="r")`, stays on disk: each batch reads its own rows. Others may
    write into that file, or into memory that a tensor shares (DLPack). So what is drawn is
    compared with hashes of all rows, 8 bytes each, which are taken before the first batch.

    Args:
      x: array or nested structure of arrays whose first dimension is the example.
      y: targets, likewise, or None.
      sample_weight: shape [num_examples] or None.
      num_examples: m that every array must have.

    Raises:
      TypeError: if the data are not arrays.
      ValueError: if an array has another number of examples.
    """

    def __init__(self, x: Any, y: Any, sample_weight: Any, num_examples: int) -> None:
        self.num_examples = num_examples
        arrays = {INPUTS: x, TARGETS: y, SAMPLE_WEIGHT: sample_weight}
        for key, value in arrays.items():
            # Else a list of arrays means as many inputs.
            if isinstance(value, (list, tuple)) and len(value) == num_examples:
                _refuse_ragged(key, value)
        self._arrays = {
            key: tf.nest.map_structure(
                functools.partial(self._checked, key), _without_plain_lists(key, value)
            )
            for key, value in arrays.items()
            if value is not None
        }

    def _checked(self, key: str, array: Any) -> Any:
        if hasattr(array, "__next__"):
            raise TypeError(
                f"A schedule needs data that can be read again in each epoch, found "
                f"{type(array).__name__}, which can be read once. Give the function that "
                f"makes it: plan.batches(function), or a tf.data.Dataset, or "
                f"tf_bandmf.sampling.IndexedExamples(fetch, num_examples)."
            )
        if isinstance(array, tf.data.Dataset) or hasattr(array, "on_epoch_end"):
            raise TypeError(
                f"Give a data set by itself, with its targets in it, and no structure of "
                f"them, found {type(array).__name__} within one: plan.batches(dataset), "
                f"as with tf.data.Dataset.zip."
            )
        if isinstance(array, str) or callable(array):
            raise TypeError(
                f"A schedule needs arrays or a data set, found {type(array).__name__}. For "
                f"TFRecord files use tf_bandmf.sampling.TFRecordExamples(files, parse)."
            )
        if isinstance(array, np.memmap):
            shape: tuple[int | None, ...] = array.shape
        else:
            # On the host: a data set need not fit the accelerator's memory.
            with tf.device("/CPU:0"):
                array = _as_tensor(array)
            shape = tuple(array.shape)
        if not shape:
            raise TypeError(
                "A schedule needs arrays whose first dimension is the example, found a "
                "single value (in a list, perhaps: give np.array(x) or "
                "np.stack(x)). A list or dictionary of arrays means several inputs."
            )
        if shape[0] != self.num_examples:
            raise ValueError(
                f"The plan is for {self.num_examples} examples, found {key} of shape "
                f"{shape}. Arrays must have a row for each example. Make a plan for this "
                f"data set, or, if users have several rows, give users= and rows_per_user=."
            )
        return array

    def gather(self, indices: tf.Tensor) -> dict[str, Any]:
        """See the base class.

        Raises:
          InvalidArgumentError: if a row is not what it was; when it is read.
        """

        def rows(array: Any, hashes: tf.Tensor) -> tf.Tensor:
            if isinstance(array, np.memmap):
                read = tf.numpy_function(
                    lambda i: np.asarray(array[i]), [indices], array.dtype
                )
                found = tf.ensure_shape(read, [None, *array.shape[1:]])
            else:
                found = tf.gather(array, indices)
            same = tf.reduce_all(hash_rows(found) == tf.gather(hashes, indices))
            with tf.control_dependencies([tf.debugging.Assert(same, [_CHANGED])]):
                return tf.identity(found)

        return tf.nest.map_structure(rows, self._arrays, self._hashes)

    @functools.cached_property
    def _hashes(self) -> dict[str, Any]:
        """Hashes of the rows of all arrays, int64, shape [num_examples]."""

        def of(array: Any) -> tf.Tensor:
            found = [
                hash_rows(
                    tf.convert_to_tensor(array[start : start + _EXAMPLES_AT_ONCE])
                )
                for start in range(0, self.num_examples, _EXAMPLES_AT_ONCE)
            ]
            return tf.concat(found, axis=0)

        with tf.init_scope(), tf.device("/CPU:0"):
            return tf.nest.map_structure(of, self._arrays)

    def recognized_by(self) -> Callable[[], np.ndarray]:
        found = [
            record_hashes(
                tf.nest.map_structure(
                    lambda a, first=first: tf.convert_to_tensor(
                        a[first : first + _EXAMPLES_AT_ONCE]
                    ),
                    self._arrays[INPUTS],
                )
            ).numpy()
            for first in range(0, self.num_examples, _EXAMPLES_AT_ONCE)
        ]
        hashes = np.unique(np.concatenate(found).view(np.uint64))[:MOST_HASHES]
        return lambda: hashes

    def update_digest(self, update: Callable[[Any], None]) -> None:
        for tensor in tf.nest.flatten(self._arrays):
            on_disk = isinstance(tensor, np.memmap)
            array = np.ascontiguousarray(tensor if on_disk else tensor.numpy())
            update(f"{array.dtype} {array.shape}".encode())
            is_text = array.dtype == object
            update(b"\0".join(array.ravel()) if is_text else array.data)


def _without_plain_lists(key: str, value: Any) -> Any:
    """A list of numbers or of lists of them as an array; other lists as tuples.

    tf.data takes a list of tensors for one tensor, where Keras means several inputs.

    Raises:
      TypeError: if the list is not rectangular.
    """
    if isinstance(value, dict):
        return {name: _without_plain_lists(key, item) for name, item in value.items()}
    if not isinstance(value, (list, tuple)):
        return value
    leaves = tf.nest.flatten(value)
    if not all(isinstance(leaf, (bool, int, float, str, bytes)) for leaf in leaves):
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return value
        return tuple(_without_plain_lists(key, item) for item in value)
    try:
        return np.array(value)
    except ValueError as error:
        raise TypeError(
            f"{key} is a list whose rows differ in length. Pad them to one length, as "
            f"with keras.utils.pad_sequences, and give an array."
        ) from error
