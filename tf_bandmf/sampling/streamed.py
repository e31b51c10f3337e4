"""Examples that come in one fixed order: a `tf.data.Dataset`, a generator, a `PyDataset`.

They are read in the order in which they come, which suffices for the batches of a fixed
epoch order: no copy on disk is needed, and no random access. The first reading, before
the run begins, counts the examples and keeps a hash of each. In later passes, each place
must hold the same example as before: a data set that shuffles itself, augments at random
or changes in between stops the pass, before the step is taken.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_bandmf.sampling.failing import said_of
from tf_bandmf.sampling.mapped import remarks_on
from tf_bandmf.sampling.sources import TARGETS, ExampleSource, as_array, named_parts

_AT_ONCE = 256
VOUCHED_ROWS = (
    "Examples come from Python code that nothing looks into: whoever trained vouches that "
    "each is made of one record alone, and each record makes one."
)


class StreamedExamples(ExampleSource):
    """Examples in the order in which a data set yields them.

        dataset = keras.utils.image_dataset_from_directory("images", shuffle=False)
        plan.batches(dataset)                      # sampling="fixed-order"

    WARNING: the order is the data set's. If it is sorted (by class, by date), shuffle it
    once, with a fixed seed.

    An example that cannot be read leaves no place for those after it: the first reading,
    before the run, raises an error. Catch it where the example is read, or read by index.

    Args:
      data: yields `x`, `(x, y)` or `(x, y, sample_weight)`. A `tf.data.Dataset`, of
        single examples or of batches; a `keras.utils.PyDataset`, whose batches are taken
        apart; or a function without arguments that returns a new iterator of single
        examples each time it is called. All examples have one shape; sparse tensors
        become dense ones.
      num_examples: m, the plan's number of examples.

    Raises:
      ValueError: if it has another number of examples, shapes vary, two passes differ, a
        function sees several examples, or an example cannot be read.
    """

    in_order = True
    may_fail = False
    _changed = (
        "The data set gave another example at place {place} than in its first pass: it "
        "shuffles itself, augments at random, or was changed. A pass must have the order "
        "of the first one. Leave shuffle() out, or shuffle once: dataset.shuffle(size, "
        "seed=1, reshuffle_each_iteration=False); augment by plan.batches(..., "
        "map=function)."
    )

    def __init__(self, data: Any, num_examples: int) -> None:
        self._begin = _blocks_of(data, num_examples)
        made_by = [data]
        if isinstance(data, tf.data.Dataset):
            made_by = [function for function, *_ in _Made.of(data).functions]
        self.remarks = remarks_on(made_by)
        if not isinstance(data, tf.data.Dataset) or any(
            _module_of(function).endswith("from_generator_op") for function in made_by
        ):
            self.remarks += (VOUCHED_ROWS,)
        self._next, self._is_counted = 0, False
        self._labels = np.zeros(0, np.int64)
        self._pass = self._new_pass()
        first = next(self._pass, None)
        if first is None:
            raise ValueError("The data set has no examples.")
        super().__init__(num_examples, first)
        for _ in range(2):  # in the same order
            self._next = -1
            self.rows(np.arange(min(_AT_ONCE, num_examples)))
        self.read_all()
        if next(self._pass, None) is not None:
            raise ValueError(
                f"The plan is for {num_examples} examples, and the data set has more. Make "
                f"a plan for this data set; leave repeat() out."
            )
        self._is_counted = True
        self._warn_of_order()

    def _warn_of_order(self) -> None:
        """Warns if all examples of a class come one after the other."""
        labels = self._labels[: self.num_examples]
        changes = int(np.count_nonzero(labels[1:] != labels[:-1]))
        sizes = np.unique(labels, return_counts=True)[1]
        if changes and changes == len(sizes) - 1 and sizes.min() > 1:
            warnings.warn(
                f"The data set is sorted by its {len(sizes)} classes, and is read in this "
                f"order: each batch has one class, and the model forgets the others. "
                f"Shuffle once: dataset.shuffle(size, seed=1, "
                f"reshuffle_each_iteration=False), for files that of their names.",
                stacklevel=6,
            )

    def _new_pass(self) -> Iterator[dict[str, Any]]:
        """Contents of one example each, in their order."""
        place = 0
        try:
            for block in self._begin():
                content = tf.nest.map_structure(as_array, block)
                for i in range(len(tf.nest.flatten(content)[0])):
                    yield tf.nest.map_structure(
                        lambda rows, i=i: rows[i : i + 1], content
                    )
                    place += 1
        except Exception as error:
            raise ValueError(
                f"The data set raised an error at example {place}, or in the block of "
                f"examples that begins there ({said_of(error)}), after which the others "
                f"cannot be told apart. Let the code that reads an example catch the "
                f"error, or give a data set that has a length and rows by index, where an "
                f"example that cannot be read counts zero."
            ) from None

    def _read(self, indices: np.ndarray) -> list[np.ndarray]:
        """Neighboring examples, in the order of the data set."""
        first, count = int(indices[0]), len(indices)
        if first != self._next:
            self._pass = itertools.islice(self._new_pass(), first, None)
        contents = list(itertools.islice(self._pass, count))
        self._next = first + count if len(contents) == count else -1
        if self._next < 0:
            self._refuse_end(first + len(contents))
        rows = zip(*map(self._checked, contents))
        if not self._is_counted and first == len(self._labels):
            self._labels = np.append(self._labels, list(map(_label_of, contents)))
        return list(map(np.concatenate, rows))

    def _refuse_end(self, found: int) -> None:
        if self._is_counted:
            raise ValueError(self._changed.format(place=found))
        raise ValueError(
            f"The plan is for {self.num_examples} examples, and the data set has {found}, "
            f"of {self._kind}. Make a plan for this data set. If these are batches, give "
            f"single examples: dataset.unbatch(), or a function that yields each row of a "
            f"batch by itself."
        )


def _label_of(content: dict[str, Any]) -> int:
    """The class of an example, whose target is its number or one-hot; 0 for others."""
    target = np.asarray(content.get(TARGETS, 0))
    if target.size == 1 and target.dtype.kind in "iub":
        return int(target.reshape(-1)[0])
    is_one_hot = target.ndim == 2 and target.sum() == target.max() == 1.0
    return int(target.argmax()) if is_one_hot else 0


def is_stream(data: Any) -> bool:
    """Whether data come in an order of their own, and not by index."""
    is_py_dataset = hasattr(data, "__getitem__") and hasattr(data, "on_epoch_end")
    return isinstance(data, tf.data.Dataset) or is_py_dataset or callable(data)


def _blocks_of(data: Any, num_examples: int) -> Callable[[], Iterator[dict[str, Any]]]:
    """What begins to read blocks of examples, from the first one."""
    if isinstance(data, tf.data.Dataset):
        return _blocks_of_dataset(data, num_examples)
    if hasattr(data, "on_epoch_end"):
        return lambda: (named_parts(data[i]) for i in range(len(data)))

    return lambda: (
        tf.nest.map_structure(lambda leaf: as_array(leaf)[None], named_parts(row))
        for row in data()
    )


def _blocks_of_dataset(
    dataset: tf.data.Dataset, num_examples: int
) -> Callable[[], Iterator[dict[str, Any]]]:
    if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise ValueError(
            "The data set is infinite: leave repeat() out. The plan's epochs repeat it."
        )
    specs = tf.nest.flatten(dataset.element_spec)
    if any(isinstance(spec, tf.RaggedTensorSpec) for spec in specs):
        raise ValueError(
            "The examples must be dense tensors of one shape, found ragged ones. Pad "
            "them, as with dataset.map and RaggedTensor.to_tensor(shape=...)."
        )
    is_batched = _is_batched(dataset, num_examples)
    _Made.of(dataset).refuse_batchwise(is_batched)

    def dense(*parts: Any) -> Any:
        made = tf.nest.map_structure(
            lambda t: tf.sparse.to_dense(t) if isinstance(t, tf.SparseTensor) else t,
            parts,
        )
        return made if len(made) > 1 else made[0]

    options = tf.data.Options()
    options.deterministic = True
    blocks = dataset.map(dense).with_options(options)
    blocks = blocks if is_batched else blocks.batch(_AT_ONCE)
    return lambda: map(named_parts, blocks.as_numpy_iterator())


def _is_batched(dataset: tf.data.Dataset, num_examples: int) -> bool:
    """Whether a data set yields batches, as far as shapes and its length say it.

    Raises:
      ValueError: if they do not.
    """
    shapes = [spec.shape for spec in tf.nest.flatten(dataset.element_spec)]
    sizes = {shape[0] if shape.rank else 0 for shape in shapes}
    length = int(dataset.cardinality())
    if sizes == {None}:
        return length != num_examples or num_examples == 1
    if 0 in sizes or len(sizes) > 1 or length == num_examples:
        return False
    size = sizes.pop()
    if length >= 0 and length * size == num_examples:
        return True
    raise ValueError(
        f"Whether the data set yields examples or batches of {size} cannot be seen. Give "
        f"dataset.unbatch() if they are batches, and dataset.batch(256) if they are not."
    )


class _Made(NamedTuple):
    """By what the elements of a data set are made.

    Attributes:
      depth: in how many batches, one in another, rows are.
      functions: each with the name of its data set, and in how many batches the rows are
        that it sees; infinitely many if it sees one after the other.
    """

    depth: int
    functions: list[tuple[Any, str, float]]

    @classmethod
    def of(cls, dataset: Any) -> _Made:
        name = type(dataset).__name__.strip("_")
        # What selects among data sets makes nothing.
        inputs = list(dataset._inputs())["DirectedInterleave" in name :]
        below = [cls.of(one) for one in inputs]
        depth = max((made.depth for made in below), default=0)
        seen = math.inf if name == "ScanDataset" else depth
        functions = [function for made in below for function in made.functions]
        functions += [(f._func, name, seen) for f in dataset._functions()]
        if "Unbatch" in name:
            return cls(max(depth - 1, 0), functions)
        return cls(depth + ("Batch" in name or "GroupByWindow" in name), functions)

    def refuse_batchwise(self, is_batched: bool) -> None:
        """Raises ValueError if a function sees several examples at once.

        What it makes of an example may depend on the others: a batch that is standardized,
        mixed up, or sorted.
        """
        for function, name, seen in self.functions:
            # tf.data calls functions too, as where it takes sparse batches apart.
            is_theirs = _module_of(function).startswith("tensorflow.python.data.")
            if seen > self.depth - is_batched and not is_theirs:
                raise ValueError(
                    f"A function of the data set ({name}) sees several examples at once: "
                    f"what it makes of one may depend on the others, and no noise covers "
                    f"that. Give it single examples: map before batch (in functions of "
                    f"Keras: batch_size=None), or dataset.unbatch().map(function); or give "
                    f"arrays, and what is random by plan.batches(..., map=function)."
                )


def _module_of(function: Any) -> str:
    return str(getattr(function, "__module__", ""))
