"""Passes over data that come in one order: every example in its place, or an error.

An example of a `tf.data.Dataset` that raises an error leaves its place empty, and the
others have theirs: tf.data numbers the places, ends of passes are marked, and what is
skipped is seen from both. Where the others would move (a shuffle or a batch after what
raised), or nothing can be read after an error (a generator), there is an error.
"""

from __future__ import annotations

import abc
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_bandmf.sampling.failing import said_of
from tf_bandmf.sampling.record_identity import PROBED
from tf_bandmf.sampling.row_kinds import Block, RowKinds, rows_of
from tf_bandmf.sampling.sources import named_parts

# How many examples are read at once.
EXAMPLES_AT_ONCE = 256
# Sources and functions of tf.data that raise for no element.
_SOURCES = {"RangeDataset", "TensorDataset", "TensorSliceDataset"}
_TOTAL = {
    *_SOURCES,
    "CacheDataset",
    "CacheDatasetV2",
    "ConcatenateDataset",
    "ModelDataset",
    "OptionsDataset",
    "PrefetchDataset",
    "RepeatDataset",
    "ShardDataset",
    "ShuffleDatasetV2",
    "ShuffleDatasetV3",
    "SkipDataset",
    "SparseTensorSliceDataset",
    "TakeDataset",
    "ZipDataset",
}
# Those that go on after an error of one element, and have the others where they were.
_GO_ON = {
    "ConcatenateDataset",
    "FilterDataset",
    "FixedLengthRecordDatasetV2",
    "FlatMapDataset",
    "GeneratorDataset",
    "MapDataset",
    "ModelDataset",
    "OptionsDataset",
    "ParallelMapDatasetV2",
    "PrefetchDataset",
    "TFRecordDataset",
    "TFRecordDatasetV2",
    "TextLineDataset",
    "ZipDataset",
}
_INSTEAD = (
    "An example that cannot be read must not stop the run, nor move others: let the code "
    "that reads it catch the error, or use {way}, where it counts zero."
)
_BY_INDEX = "tf_bandmf.sampling.IndexedExamples(fetch, num_examples)"
_UNBATCHED = (
    "a tf.data.Dataset of single examples (without batch(); in functions of Keras: "
    "batch_size=None)"
)

AS_FILES = "tf_bandmf.sampling.TFRecordExamples(files, parse)"

IF_BATCHES = (
    "If these are batches, give single examples: dataset.unbatch(), or a function that "
    "yields each row of a batch by itself."
)
ENDED = (
    "The data set ended after {found} of the {expected} examples of the plan, {failed} of "
    "which raised an error: what makes them (a generator, a file) did not go on after it. "
    + _INSTEAD.format(way=_BY_INDEX)
)

VOUCHED_ROWS = (
    "Examples come from Python code that nothing looks into: whoever trained vouches that "
    "each is made of one record alone, and each record makes one."
)


class Passes(abc.ABC):
    """Data that can be read in one order again and again."""

    @abc.abstractmethod
    def samples(self) -> Iterator[dict[str, Any]]:
        """Contents of some blocks, by which their kind is seen."""

    @abc.abstractmethod
    def blocks(self, kinds: RowKinds) -> Iterator[Block]:
        """The blocks of a new pass.

        Raises:
          ValueError: if examples are of several kinds; if nothing can be read after an
            example that raises an error.
        """

    @abc.abstractmethod
    def refuse_failures(self) -> None:
        """Raises ValueError if an example that raises an error could move others."""


class _WholeBlocks(Passes):
    """What has no next element after an error."""

    def __init__(self, begin: Callable[[], Iterator[Any]]) -> None:
        self._begin = begin

    def samples(self) -> Iterator[dict[str, Any]]:
        yield from map(_arrays, itertools.islice(self._begin(), 1))

    def blocks(self, kinds: RowKinds) -> Iterator[Block]:
        for block in self._begin():
            leaves = kinds.checked(_arrays(block))
            yield leaves, np.ones(len(leaves[0]), bool)

    def refuse_failures(self) -> None:
        raise AssertionError("A pass ends with the first error.")


class _Elements(Passes):
    """A `tf.data.Dataset` of single examples."""

    def __init__(self, dataset: tf.data.Dataset, num_examples: int) -> None:
        self._dataset, self._num_examples = _in_order(dataset), num_examples

    def samples(self) -> Iterator[dict[str, Any]]:
        found = tf.data.Dataset.zip((tf.data.Dataset.range(PROBED), self._dataset))
        for _, element in found.ignore_errors().as_numpy_iterator():
            yield tf.nest.map_structure(
                lambda leaf: rows_of(np.asarray(leaf)[None]), _content(element)
            )

    def blocks(self, kinds: RowKinds) -> Iterator[Block]:
        place = 0
        for places, (*leaves, ends) in self._numbered(kinds).as_numpy_iterator():
            leaves = [rows_of(leaf)[~ends] for leaf in leaves]
            count = int(places[-1]) + 1 - int(ends[-1]) - place
            works = np.zeros(count, bool)
            works[places[~ends] - place] = True
            if not works.all():
                block = kinds.blank(count)
                for all_rows, rows in zip(block, leaves):
                    all_rows[works] = rows
                leaves = block
            yield leaves, works
            place += count
            if ends[-1]:
                return
        raise ValueError(
            f"The plan is for {self._num_examples} examples, and the data set has more, or "
            f"raises errors without end. Make a plan for this data set; leave repeat() out."
        )

    def _numbered(self, kinds: RowKinds) -> tf.data.Dataset:
        """Blocks of (places, (leaves, whether this is the end)) of what can be read."""

        @tf.autograph.experimental.do_not_convert
        def flat(*parts: Any) -> Any:
            leaves = tf.nest.flatten(_content(parts if len(parts) > 1 else parts[0]))
            shaped = [
                tf.ensure_shape(leaf, shape)
                for leaf, (shape, _) in zip(leaves, kinds.kinds, strict=True)
            ]
            return (*shaped, False)

        blank = [tf.constant(leaf[0]) for leaf in kinds.blank(1)]
        end = tf.data.Dataset.from_tensors((*blank, True))
        places = tf.data.Dataset.range(self._num_examples + 1)
        found = tf.data.Dataset.zip((places, self._dataset.map(flat).concatenate(end)))
        return found.ignore_errors().batch(EXAMPLES_AT_ONCE)

    def refuse_failures(self) -> None:
        variant = tf.data.experimental.to_variant(self._dataset)
        ignore = 1  # State of operations; what they are is what counts.
        serialized = tf.raw_ops.DatasetToGraphV2(
            input_dataset=variant, external_state_policy=ignore
        )
        graph = tf.compat.v1.GraphDef.FromString(serialized.numpy())
        nodes = {node.name: node for node in graph.node}

        @functools.cache
        def behind(name: str) -> frozenset[str]:
            """What a data set is made by."""
            node = nodes[name.split(":")[0].lstrip("^")]
            own = {node.op} if "Dataset" in node.op else set()
            return frozenset(own.union(*map(behind, node.input)))

        found = {node.op for name, node in nodes.items() if not behind(name) <= _TOTAL}
        found |= {n.op for f in graph.library.function for n in f.node_def} - _SOURCES
        moving = sorted(op for op in found - _GO_ON if "Dataset" in op)
        if moving:
            raise ValueError(
                f"An example of the data set raises an error, and {', '.join(moving)} may "
                f"put others into other places then. Shuffle, interleave, cache or batch "
                f"before whatever may raise, or not at all. "
                f"{_INSTEAD.format(way=_BY_INDEX)}"
            )


def opened(data: Any, num_examples: int, batched: bool | None) -> Passes:
    """Passes over data.

    Args:
      data: see `StreamedExamples`.
      num_examples: m.
      batched: whether a `tf.data.Dataset` yields batches; None if that is to be seen.

    Raises:
      TypeError: if they are none that can be read again.
      ValueError: if they are infinite or ragged, a function sees several examples,
        or it cannot be seen.
    """
    if isinstance(data, tf.data.Dataset):
        return _of_dataset(data, num_examples, batched)
    if is_py_dataset(data):
        return _WholeBlocks(
            lambda: read_each((data[i] for i in range(len(data))), "batch", _BY_INDEX)
        )
    if callable(data) and not isinstance(data, type):
        return _WholeBlocks(lambda: _stacked(read_each(data(), "example", _BY_INDEX)))
    raise TypeError(
        f"A stream of examples must be a tf.data.Dataset, a PyDataset, or a function "
        f"that returns a new iterator, found {type(data).__name__}. A generator that has "
        f"begun can be read only once: give the function that makes it."
    )


def refuse_batchwise(dataset: tf.data.Dataset, batched: bool) -> None:
    """Raises ValueError if a function of a data set sees several examples at once.

    What it makes of an example may depend on the others: a batch that is standardized,
    mixed up, or sorted.

    Args:
      dataset: yields examples, or batches of them.
      batched: whether these are batches.
    """
    of_one = _batches_around(dataset) - batched
    for made in _behind(dataset):
        depth = max(map(_batches_around, _inputs_of(made)), default=0)
        name = type(made).__name__.strip("_")
        if depth <= of_one and name != "ScanDataset":
            continue
        makers = [_module_of(function._func) for function in made._functions()]
        # tf.data calls functions too, as where it takes sparse batches apart.
        if all(maker.startswith("tensorflow.python.data.") for maker in makers):
            continue
        raise ValueError(
            f"A function of the data set ({name}) sees several examples at once: what it "
            f"makes of one may depend on the others, and no noise covers that. Give it "
            f"single examples: map before batch (in functions of Keras: batch_size=None), "
            f"or dataset.unbatch().map(function); or give arrays, and what is random by "
            f"plan.batches(..., map=function)."
        )


def _inputs_of(dataset: tf.data.Dataset) -> list[tf.data.Dataset]:
    """The data sets of whose elements one is made, without one that only selects."""
    inputs = list(dataset._inputs())
    return inputs["DirectedInterleave" in type(dataset).__name__ :]


def _behind(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    yield dataset
    for one in _inputs_of(dataset):
        yield from _behind(one)


def _batches_around(dataset: tf.data.Dataset) -> int:
    """In how many batches, one in another, rows of a data set are."""
    depth = max(map(_batches_around, _inputs_of(dataset)), default=0)
    name = type(dataset).__name__
    if "Unbatch" in name:
        return max(depth - 1, 0)
    return depth + ("Batch" in name or "GroupByWindow" in name)


def is_traced(data: Any) -> bool:
    """Whether data are a `tf.data.Dataset` whose examples no generator makes."""
    return isinstance(data, tf.data.Dataset) and not any(
        _module_of(function).endswith("from_generator_op")
        for function in functions_of(data)
    )


def functions_of(data: Any) -> list[Any]:
    """The functions that make the examples of a stream, as far as they are seen."""
    if not isinstance(data, tf.data.Dataset):
        return [data]
    return [function._func for made in _behind(data) for function in made._functions()]


def _module_of(function: Any) -> str:
    return str(getattr(function, "__module__", ""))


def is_py_dataset(data: Any) -> bool:
    """Whether data are a `keras.utils.PyDataset`, or like one."""
    return hasattr(data, "__getitem__") and hasattr(data, "on_epoch_end")


def _of_dataset(
    dataset: tf.data.Dataset, num_examples: int, batched: bool | None
) -> Passes:
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
    refuse_batchwise(dataset, batched)
    if not batched:
        return _Elements(dataset, num_examples)
    dense = _in_order(dataset)
    return _WholeBlocks(
        lambda: read_each(
            dense.as_numpy_iterator(), "batch", f"{_UNBATCHED}, or {_BY_INDEX}"
        )
    )


def _in_order(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Dense elements, in the same order each time."""
    options = tf.data.Options()
    options.deterministic = True
    return dataset.map(_dense).with_options(options)


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


def read_each(items: Iterable[Any], what: str, way: str) -> Iterator[Any]:
    """The items; raises ValueError if reading one raises, and says what to do."""
    iterator = iter(items)
    for number in itertools.count():
        try:
            item = next(iterator)
        except StopIteration:
            return
        except Exception as error:
            raise ValueError(
                f"{what.capitalize()} {number} of the data set raised an error "
                f"({said_of(error)}), after which the others cannot be told apart. "
                f"{_INSTEAD.format(way=way)}"
            ) from None
        yield item


def _stacked(examples: Iterator[Any]) -> Iterator[Any]:
    """Blocks of single examples."""
    while block := list(itertools.islice(examples, EXAMPLES_AT_ONCE)):
        try:
            yield tf.nest.map_structure(lambda *same: np.stack(same), *block)
        except (TypeError, ValueError):
            # Their texts hold the examples.
            raise ValueError(
                f"The examples must have one structure and one shape. Pad or cut them. "
                f"{IF_BATCHES}"
            ) from None


def _arrays(block: Any) -> dict[str, Any]:
    """The content of a block, as arrays with as many rows."""
    content = tf.nest.map_structure(rows_of, _content(block))
    sizes = {len(leaf) for leaf in tf.nest.flatten(content)}
    if len(sizes) != 1:
        raise ValueError(
            f"Inputs, targets and weights must have as many rows, found {sorted(sizes)}."
        )
    return content


def _content(block: Any) -> dict[str, Any]:
    parts = tuple(block) if isinstance(block, list) else block
    return {
        name: _without_lists(part)
        for name, part in named_parts(parts, "A data set must yield").items()
        if part is not None
    }


def _without_lists(value: Any) -> Any:
    """tf.data takes a list for one tensor, where Keras means several."""
    if isinstance(value, dict):
        return {name: _without_lists(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(_without_lists(item) for item in value)
    return value
