"""Examples that can be read by index, which is what every sampler needs."""

from __future__ import annotations

import abc
import functools
import types
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple

import numpy as np
import scipy.sparse
import tensorflow as tf

from tf_bandmf.sampling.record_identity import Records, hash_rows, record_hashes

# Keys of the contents of a batch.
INPUTS, TARGETS, SAMPLE_WEIGHT = "x", "y", "sample_weight"
# In batches of clipping units of K rows alone: which rows are there, bool, shape [N, K].
ROWS = "rows"
# The largest part of the clip norm that an example may contribute, in [0, 1].
SHARE = "share"
CONTENT = (INPUTS, TARGETS, SAMPLE_WEIGHT, ROWS, SHARE)
_EXAMPLES_AT_ONCE = 4096
OF_CLASS_WEIGHTS = (
    "Weights of classes are in use: where they were computed from private targets, no "
    "noise covers them, and each record changes the weight of all others."
)
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
      remarks: what the statement of a run on them must say, in sentences.
    """

    num_examples: int
    has_own_order: bool = False
    remarks: tuple[str, ...] = ()
    ranges: Mapping[str, Any] = types.MappingProxyType({})

    @abc.abstractmethod
    def gather(self, indices: tf.Tensor) -> dict[str, Any]:
        """Examples, also in a graph: `x`, and `y` and `sample_weight` if there are any.

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
        return repeated(self.gather(indices), views)

    def weighted(
        self, weigh: Callable[[ExampleSource], ExampleSource]
    ) -> ExampleSource:
        """What `weigh` makes of the rows of this source, which are its examples here."""
        return weigh(self)

    @abc.abstractmethod
    def row_hashes(self) -> np.ndarray:
        """Hashes of examples with their targets and weights, int64; of all, or of some."""

    @abc.abstractmethod
    def update_digest(self, update: Callable[[Any], None]) -> None:
        """Feeds bytes to a hash that differ if the data do, or their order."""

    @abc.abstractmethod
    def recognized_by(self) -> Callable[[], Records]:
        """Gives hashes of the examples' inputs, to recognize those of another run.

        There may be more as examples are read; no examples are kept alive.
        """


class WrappedExamples(ExampleSource):
    """Examples of another source, which are changed as they are read.

    Number, order, declared ranges, remarks, digest and hashes are those of the other
    source, unless overridden.

    Args:
      examples: what is read.
    """

    def __init__(self, examples: ExampleSource) -> None:
        self._examples = examples
        self.num_examples = examples.num_examples
        self.has_own_order, self.ranges = examples.has_own_order, examples.ranges
        self.remarks = examples.remarks

    def gather(self, indices: tf.Tensor) -> dict[str, Any]:
        return self._changed(self._examples.gather(indices), indices)

    def drawn(self, indices: tf.Tensor, draw: Draw, views: int = 1) -> dict[str, Any]:
        ids = tf.repeat(tf.cast(indices, tf.int64), views)
        return self._changed(self._examples.drawn(indices, draw, views), ids)

    def _changed(self, content: dict[str, Any], indices: tf.Tensor) -> dict[str, Any]:
        """What is made of rows, of which each is of one of these examples."""
        return content

    def row_hashes(self) -> np.ndarray:
        return self._examples.row_hashes()

    def update_digest(self, update: Callable[[Any], None]) -> None:
        self._examples.update_digest(update)

    def recognized_by(self) -> Callable[[], Records]:
        return self._examples.recognized_by()


def made_here(source: ExampleSource) -> ExampleSource:
    """The source; raises TypeError if it is not one of this library's.

    An index must mean one example, whatever was read before or is read beside it.
    """
    if type(source).__module__.startswith("tf_bandmf."):
        return source
    raise TypeError(
        f"{type(source).__name__} is no source of examples of this library. Read examples "
        f"in another way by tf_bandmf.sampling.IndexedExamples(fetch, num_examples), which "
        f"compares what comes back; change them by plan.batches(..., map=function)."
    )


def named_parts(given: Any, said: str) -> dict[str, Any]:
    """The parts of examples by the names that contents have.

    Args:
      given: x, (x, y) or (x, y, sample_weight).
      said: who gave them, and that they must be so, for the message.

    Raises:
      ValueError: if there are none, or more.
    """
    parts = given if isinstance(given, tuple) else (given,)
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
            f"type {type(items[0]).__name__}: pad rows to one shape and use np.stack; make "
            f"sparse ones dense (rows.toarray(), tf.sparse.to_dense(rows))."
        )
    found = np.empty(items.shape, object)
    found[:] = [i if isinstance(i, bytes) else str(i).encode() for i in items]
    return found.reshape(array.shape)


def _as_tensor(array: Any) -> tf.Tensor:
    """An array as a tensor.

    Raises:
      TypeError: if it is none of numbers or texts.
    """
    if isinstance(array, tf.SparseTensor) or scipy.sparse.issparse(array):
        raise TypeError(
            f"A schedule reads dense rows, found a {type(array).__name__}. If it is the "
            f"only input, give it as scipy.sparse.csr_matrix((values, indices.T), shape), "
            f"which becomes dense batch by batch; otherwise tf.sparse.to_dense(x), or "
            f"x.toarray() of SciPy's."
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
        if self._weighs_classes():
            self.remarks = (OF_CLASS_WEIGHTS,)

    def _weighs_classes(self) -> bool:
        """Whether sample weights are those of the classes of the targets."""
        given = [self._arrays.get(key) for key in (TARGETS, SAMPLE_WEIGHT)]
        if not all(getattr(array, "shape", None) is not None for array in given):
            return False
        y, weight = (
            np.asarray(array).reshape(self.num_examples, -1) for array in given
        )
        if y.shape[1] != 1 or weight.shape[1] != 1:
            return False
        classes, number = np.unique(y, return_inverse=True)
        weights, kind = np.unique(weight, return_inverse=True)
        pairs = np.unique(number.ravel() * len(weights) + kind.ravel())
        is_function = len(pairs) == len(classes) <= self.num_examples // 2
        return is_function and len(weights) > 1

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

    def row_hashes(self) -> np.ndarray:
        columns = tf.nest.flatten(self._hashes)
        return hash_rows(tf.stack(columns, axis=1)).numpy()

    def recognized_by(self) -> Callable[[], Records]:
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
        records = Records.of(np.concatenate(found))
        return lambda: records

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
