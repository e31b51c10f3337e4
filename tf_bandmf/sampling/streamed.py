"""Examples in one fixed order: from a `tf.data.Dataset`, a generator or a `PyDataset`.

Examples are read in the order of the data set. This suffices for the batches of a fixed
epoch order, and requires neither a copy on disk nor random access. The first pass,
before the run begins, counts the examples and stores a hash of each. In later passes,
each position must hold the same example: if a data set shuffles itself, augments at
random or changes, an error is raised before the step is taken.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_bandmf.sampling.mapped import remarks_on
from tf_bandmf.sampling.sources import (
    ExampleSource,
    as_array,
    classes_of,
    named_parts,
    said_of,
)

# The number of single examples that are read as one block.
_AT_ONCE = 256
VOUCHED_ROWS = (
    "Examples come from uninspected Python code: whoever trained the model vouches that "
    "this code makes each example from exactly one record, and one from each record."
)


class StreamedExamples(ExampleSource):
    """Examples in the order in which a data set yields them.

        dataset = keras.utils.image_dataset_from_directory("images", shuffle=False)
        plan.batches(dataset)                      # sampling="fixed-order"

    WARNING: training follows the order of the data set. If the data set is sorted (by
    class or by date), shuffle it once, with a fixed seed.

    After an example that cannot be read, the positions of later examples are unknown, so
    the first pass, before the run, raises an error. Catch the error in the code that reads
    the example, or use a data set that is read by index.

    Args:
      data: data set that yields `x`, `(x, y)` or `(x, y, sample_weight)`: a
        `tf.data.Dataset` of single examples, or of batches that `dataset.batch` made; a
        `keras.utils.PyDataset`, whose batches are split; or a function without arguments
        that returns a new iterator of single examples in each call. All examples must have
        one shape; sparse tensors are made dense.
      num_examples: m, the plan's number of examples.

    Raises:
      ValueError: if the number of examples differs from `num_examples`, if shapes vary,
        if two passes differ, if a function of the data set receives several examples in
        one call, or if an example cannot be read.
    """

    in_order = True
    _changed = (
        "The data set gave another example at place {place} than in its first pass: it "
        "shuffles, augments at random, or was changed. Every pass must yield "
        "the same examples in the same order. Omit shuffle(), or shuffle once: "
        "dataset.shuffle(size, seed=1, reshuffle_each_iteration=False). Use "
        "plan.batches(..., map=function) for augmentation."
    )

    def __init__(self, data: Any, num_examples: int) -> None:
        functions = [data]
        if isinstance(data, tf.data.Dataset):
            functions = [function for function, *_ in _made_by(data)[1]]
        self.remarks = remarks_on(functions)
        from_python = (_module_of(f).endswith("from_generator_op") for f in functions)
        if not isinstance(data, tf.data.Dataset) or any(from_python):
            self.remarks += (VOUCHED_ROWS,)
        self._begin, self._next = _blocks_of(data), num_examples
        self._pass = self._new_pass()
        first = next(self._pass, None)
        if first is None:
            raise ValueError("The data set has no examples. Check its source.")
        super().__init__(num_examples, first)
        self.rows(np.arange(min(_AT_ONCE, num_examples)))
        # The next read starts a new pass over the data set.
        self._next = num_examples
        labels = [classes_of(content) for content in self.all_rows()]
        if next(self._pass, None) is not None:
            raise ValueError(
                f"The plan is for {num_examples} examples, but the data set has more. "
                f"Make a plan for this data set, and omit repeat(). If you use batch() to "
                f"make one example of several rows, batch once more: dataset.batch(256)."
            )
        _warn_of_order(np.concatenate(labels))

    def _new_pass(self) -> Iterator[dict[str, Any]]:
        """Yields the content of each example, in the order of the data set."""
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
                f"examples that begins there ({said_of(error)}), so the positions of later "
                f"examples are unknown. Catch the error in the code that reads an example, "
                f"or pass an object with len(x) and x[i] instead of this data set: "
                f"then examples that cannot be read are replaced by zeros."
            ) from None

    def _read(self, indices: np.ndarray) -> list[np.ndarray]:
        """Returns consecutive examples, in the order of the data set."""
        first, end = int(indices[0]), int(indices[-1]) + 1
        if first < self._next:
            self._pass, self._next = self._new_pass(), 0
        # If reading fails in the next line, the next read starts a new pass.
        begin, self._next = self._next, self.num_examples
        contents = list(itertools.islice(self._pass, first - begin, end - begin))
        if (count := first + len(contents)) < end:
            if self._is_seen[count]:
                raise ValueError(self._changed.format(place=count))
            raise ValueError(
                f"The plan is for {self.num_examples} examples, but the data set has "
                f"{count}, each with types and shapes {self._kind}. Make a plan with "
                f"num_examples={count}. If its {count} elements are batches, pass "
                f"dataset.unbatch(), or a function that yields single examples."
            )
        self._next = end
        return list(map(np.concatenate, zip(*map(self._checked, contents))))


def _warn_of_order(labels: np.ndarray) -> None:
    """Warns if the examples are sorted by class."""
    changes = int(np.count_nonzero(labels[1:] != labels[:-1]))
    sizes = np.unique(labels, return_counts=True)[1]
    if changes and changes == len(sizes) - 1 and sizes.min() > 1:
        warnings.warn(
            f"The data set is sorted by its {len(sizes)} classes, and is read in this "
            f"order: most batches contain one class, and the model forgets the others. "
            f"Shuffle the file names, or shuffle once: dataset.shuffle(size, seed=1, "
            f"reshuffle_each_iteration=False).",
            stacklevel=6,
        )


def is_stream(data: Any) -> bool:
    """Returns True if the data can only be read in their own order, not by index."""
    is_py_dataset = hasattr(data, "__getitem__") and hasattr(data, "on_epoch_end")
    return isinstance(data, tf.data.Dataset) or is_py_dataset or callable(data)


def _blocks_of(data: Any) -> Callable[[], Iterator[dict[str, Any]]]:
    """Returns a function that starts a new pass over blocks of examples."""
    if isinstance(data, tf.data.Dataset):
        return _blocks_of_dataset(data)
    if hasattr(data, "on_epoch_end"):
        return lambda: (named_parts(data[i]) for i in range(len(data)))

    return lambda: (
        tf.nest.map_structure(lambda leaf: as_array(leaf)[None], named_parts(row))
        for row in data()
    )


def _blocks_of_dataset(
    dataset: tf.data.Dataset,
) -> Callable[[], Iterator[dict[str, Any]]]:
    if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise ValueError(
            "The data set is infinite. Omit repeat(): the plan's epochs repeat the data."
        )
    specs = tf.nest.flatten(dataset.element_spec)
    if any(isinstance(spec, tf.RaggedTensorSpec) for spec in specs):
        raise ValueError(
            "The examples must be dense tensors of one shape, found ragged tensors. Pad "
            "them: dataset.map(lambda x, y: (x.to_tensor(shape=...), y))."
        )
    depth, functions = _made_by(dataset)
    # If the elements of the data set are batches, they are split into examples.
    is_batched = depth > 0
    for function, name, seen in functions:
        # tf.data also calls internal functions, for example to split sparse batches.
        is_theirs = _module_of(function).startswith("tensorflow.python.data.")
        if seen > depth - is_batched and not is_theirs:
            raise ValueError(
                f"A function of the data set ({name}) sees several examples at once and "
                f"may mix them, but noise hides only one example. Call map before batch "
                f"(in Keras' utilities: batch_size=None), use "
                f"dataset.unbatch().map(function), or pass arrays, and the function as "
                f"plan.batches(..., map=function). If you use batch() to make one example "
                f"of several rows, batch once more: dataset.batch(256)."
            )

    def dense(part: Any) -> Any:
        return tf.sparse.to_dense(part) if isinstance(part, tf.SparseTensor) else part

    options = tf.data.Options()
    options.deterministic = True
    blocks = dataset if is_batched else dataset.batch(_AT_ONCE)
    blocks = blocks.with_options(options)
    return lambda: (named_parts(tf.nest.map_structure(dense, b)) for b in blocks)


def _made_by(dataset: Any) -> tuple[int, list[tuple[Any, str, float]]]:
    """Returns the functions that make the elements of a data set.

    If a function receives several examples in one call, its result for an example may
    depend on all of them, for example if it standardizes, mixes or sorts a batch.

    Returns:
      How many times the elements are batched (0 for single examples); and a list with
      a tuple for each function: the function, the class name of the data set that calls
      it, and how many times the inputs of the function are batched. For a function that
      carries a state from row to row, this last number is infinite.
    """
    name = type(dataset).__name__.strip("_")
    # The first input of DirectedInterleave only selects among the data sets, and makes
    # no elements.
    inputs = list(dataset._inputs())["DirectedInterleave" in name :]
    below = [_made_by(one) for one in inputs]
    depth = max((depth for depth, _ in below), default=0)
    seen = math.inf if name == "ScanDataset" else depth
    functions = [function for _, earlier in below for function in earlier]
    functions += [(f._func, name, seen) for f in dataset._functions()]
    if "Unbatch" in name:
        return max(depth - 1, 0), functions
    return depth + ("Batch" in name or "GroupByWindow" in name), functions


def _module_of(function: Any) -> str:
    return str(getattr(function, "__module__", ""))
