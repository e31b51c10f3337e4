"""The data that `Plan.batches` receives: rows, changes to rows, and groups of rows.

The sampler draws examples. The gradient of each example is clipped, and the guarantee
hides whether the example is present. An example is one row, or a group of several rows:
the views of one row (its augmented versions), or the records of one user. The loss of a
group is the mean loss of its rows. A batch of N groups has contents of shape
[N, K, ...], and a mask `rows`, bool, shape [N, K], which is False for padding in groups
with fewer than K rows.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tf_bandmf.sampling.changes import ClassWeights, Ranges
from tf_bandmf.sampling.identity import INPUTS, ROWS, SAMPLE_WEIGHT, TARGETS, hash_rows
from tf_bandmf.sampling.mapped import Mapped
from tf_bandmf.sampling.sources import (
    OF_WEIGHTS,
    ArrayExamples,
    ExampleSource,
    IndexedExamples,
    classes_of,
    rows_with_nan,
)
from tf_bandmf.sampling.streamed import StreamedExamples, is_stream

# The number of examples, and of views per example, on which `map` is tried out.
_TRIED_EXAMPLES, _TRIED_VIEWS = 4, 2
# The number of neighboring examples that are inspected for overlap, and the fraction of
# overlapping neighbors that counts as an error.
_NEIGHBORS, _MOST = 64, 0.9


class Examples:
    """The examples of a plan, which each step reads by index.

    Args:
      num_examples: number of examples of the plan.
      x: `TFRecordExamples`; or a data set that can only be read in its own order
        (`tf.data.Dataset`, `PyDataset`, a function that returns an iterator); or
        arrays; or any object with a length and rows by index.
      y: targets if x is arrays, or None.
      sample_weight: sample weights if x is arrays, or None.
      may_overlap: False to raise an error if neighboring examples are overlapping
        windows of a series.
      ranges: declared ranges; rows outside them become zeros with weight 0; see `Ranges`.
      map: a function that changes rows; see `Mapped`.
      views: the number of views of each row.
      users: None if each row is an example; otherwise the user of each row, integers or
        strings, shape [rows], and each user is one example.
      rows_per_user: maximum number of rows of one user that a step uses; if a user has
        more rows, they are chosen at random.

    Attributes:
      source: source of the rows.
      num_examples: number of examples.
      labels: class numbers of the examples that were inspected; empty if not known.
      changes: functions that change rows after reading, in the order of their calls.
      ranges: declared ranges of the model's "x" and "y".
      remarks: sentences that the privacy statement of a run on these examples must
        contain.

    Raises:
      TypeError, ValueError: if the arguments contradict each other or the plan.
    """

    def __init__(
        self,
        num_examples: int,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        may_overlap: bool = True,
        map: Callable[..., Any] | None = None,
        views: int = 1,
        users: Any = None,
        rows_per_user: int | None = None,
        ranges: Mapping[str, Any] | None = None,
    ) -> None:
        num_rows = num_examples if users is None else np.shape(users)[0]
        self.source = source = _source_of(x, y, sample_weight, num_rows)
        if map is None and source.has_text_targets:
            raise TypeError(
                "Targets must be numbers, found strings. Replace each class by its number "
                "in a public list of classes: y = [CLASSES.index(name) for name in y]."
            )
        self.labels = np.zeros(0, np.int64)
        self.num_examples = source.num_examples
        if not may_overlap:
            _refuse_overlap(source)
        hashes, missing = source.seen()
        if users is None:
            _warn_of_repetitions(hashes, source.num_examples)
        self.remarks, self.ranges = source.remarks, {}
        self.changes: list[Any] = []
        if source.parse is not None:
            self._make(source.parse, parses=True)
        if not (map is not None or ranges or source.in_order):
            ids = tf.constant(source.probed())
            rows = self._rows(np.zeros(2, np.int64), tf.constant(0, tf.int64), ids, 1)
            content = tf.nest.map_structure(np.asarray, rows)
            self.labels = classes_of(content)
            if source.parse is not None:
                missing = rows_with_nan(tf.nest.flatten(content))
        if map is None and not ranges and missing.any():
            warnings.warn(
                f"{100.0 * missing.mean():.3g}% of {len(missing)} inspected examples "
                f"contain NaN. Such an example contributes nothing to training. Fill in "
                f"missing values before plan.batches, and add a column that marks them.",
                stacklevel=4,
            )
        if ranges:
            self.changes.append(Ranges(ranges))
            self.ranges = dict(ranges)
        if map is not None:
            # Declared ranges apply to what `map` receives, not to what it returns.
            kept = () if self._make(map).with_targets else (TARGETS,)
            self.ranges = {k: v for k, v in self.ranges.items() if k in kept}
        elif views != 1:
            raise ValueError(
                f"With views={views}, also pass map=, a function that makes views differ."
            )
        self._views, self._most = _whole("views", views), 1
        self._row_ids: np.ndarray | None = None
        if users is None:
            if rows_per_user is not None:
                raise ValueError("With rows_per_user, also pass users= (one per row).")
            return
        users = np.asarray(users)
        if source.in_order:
            raise ValueError(
                "With users=, x must not be a data set that is read in its own order. Pass "
                "arrays, TFRecordExamples(files, parse), or an object with len(x) and x[i]."
            )
        if users.shape != (source.num_examples,):
            raise ValueError(
                f"users must have the shape ({source.num_examples},), one user for each "
                f"row of x, found the shape {users.shape}."
            )
        self._most = _whole("rows_per_user", rows_per_user)
        _, whose = np.unique(users, return_inverse=True)
        self._row_ids = np.argsort(whose, kind="stable").astype(np.int64)
        counts = np.bincount(whose)
        self._ends = np.cumsum(counts)
        self._starts = self._ends - counts
        self.num_examples = int(counts.size)

    def _make(self, function: Callable[..., Any], parses: bool = False) -> Mapped:
        ids = tf.range(min(_TRIED_EXAMPLES, self.source.num_examples), dtype=tf.int64)
        draw = np.zeros(2, np.int64), tf.constant(0, tf.int64), ids, _TRIED_VIEWS
        change = Mapped(function, self._rows(*draw), _seeds(*draw), parses)
        self.changes.append(change)
        self.remarks = (*self.remarks, *change.remarks)
        return change

    def weighted(self, class_weight: Mapping[int, float]) -> Examples:
        """Returns these examples with contributions scaled by class weights."""
        other = copy.copy(self)
        vars(other).pop("digest", None)
        other.changes = [*self.changes, ClassWeights(class_weight)]
        other.remarks = tuple(dict.fromkeys((*self.remarks, OF_WEIGHTS)))
        return other

    def _rows(
        self, base: np.ndarray, step: tf.Tensor, ids: tf.Tensor, views: int
    ) -> dict[str, Any]:
        content = self.source.gather(ids)
        if views > 1:
            content = tf.nest.map_structure(lambda t: tf.repeat(t, views, 0), content)
        for change in self.changes:
            content = change(content, lambda: _seeds(base, step, ids, views))
        return content

    def drawn(
        self, indices: tf.Tensor, step: tf.Tensor, base: np.ndarray
    ) -> dict[str, Any]:
        """Returns the contents of a batch; can also be called in a graph.

        Args:
          indices: indices of the examples, int64, shape [N], N >= 0.
          step: step of the run, int64 scalar.
          base: the seed of the run's random numbers, int64, shape [2].
        """
        size, views = self._most * self._views, self._views
        if self._row_ids is not None:
            choose = functools.partial(self._choose, base)
            kinds = [tf.int64, tf.bool]
            ids, present = tf.numpy_function(choose, [indices, step], kinds)
            content = self._rows(base, step, tf.reshape(ids, [-1]), views)
        else:
            content = self._rows(base, step, indices, views)
            if views == 1:
                return content
            present = tf.fill([tf.size(indices)], True)

        def by_unit(rows: tf.Tensor) -> tf.Tensor:
            return tf.reshape(rows, [tf.size(indices), size, *rows.shape[1:]])

        content[ROWS] = tf.repeat(tf.reshape(present, [-1]), views)
        return tf.nest.map_structure(by_unit, content)

    def _choose(
        self, base: np.ndarray, units: np.ndarray, step: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Chooses at most K (`rows_per_user`) rows of each user.

        If a user has more than K rows, K of them are chosen at random.

        Args:
          base: the seed of the run's random numbers, int64, shape [2].
          units: indices of the users, int64, shape [N].
          step: step of the run.

        Returns:
          Ids of the rows, shape [N, K], padded with the user's first row; and a mask
          that is False for padding, shape [N, K].
        """
        assert self._row_ids is not None
        ids = np.empty((len(units), self._most), np.int64)
        present = np.zeros((len(units), self._most), bool)
        for place, unit in enumerate(units):
            rows = self._row_ids[self._starts[unit] : self._ends[unit]]
            if rows.size > self._most:
                # NumPy's compatibility policy guarantees that the random numbers of
                # RandomState never change.
                seed = np.append(base.view(np.uint32), [int(step), unit])
                order = np.random.RandomState(seed).permutation(rows.size)
                rows = rows[np.sort(order[: self._most])]
            ids[place], ids[place, : rows.size] = rows[0], rows
            present[place, : rows.size] = True
        return ids, present

    @functools.cached_property
    def digest(self) -> bytes:
        """A hash of the examples, of their order, and of the changes to their rows."""
        digest = hashlib.blake2b(digest_size=32)
        self.source.update_digest(digest.update)
        for change in self.changes:
            digest.update(change.digest)
        if self._row_ids is not None or self._views > 1:
            digest.update(f"units {self._most} {self._views}".encode())
        if self._row_ids is not None:
            digest.update(self._row_ids.tobytes() + self._starts.tobytes())
        return digest.digest()


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be an integer >= 1, found {value!r}.")
    return value


def _seeds(base: np.ndarray, step: tf.Tensor, ids: tf.Tensor, views: int) -> tf.Tensor:
    """Returns seeds for `tf.random.stateless_*`, int64, shape [N * views, 2].

    Args:
      base: seed of the run's random numbers, int64, shape [2].
      step: step of the run.
      ids: ids of the rows, int64, shape [N].
      views: number of views of each row; the seeds of a row's views are adjacent.
    """
    ids = tf.repeat(ids, views)
    view = tf.math.floormod(tf.range(tf.size(ids, tf.int64), dtype=tf.int64), views)
    same = tf.stack([*base.tolist(), tf.cast(step, tf.int64)])
    same = tf.broadcast_to(same, [tf.size(ids), 3])
    words = tf.concat([same, ids[:, None], view[:, None]], axis=1)
    two = (tf.pad(words, [[0, 0], [0, 1]], constant_values=c) for c in (0, 1))
    return tf.stack([hash_rows(part) for part in two], axis=1)


def _source_of(x: Any, y: Any, sample_weight: Any, num_examples: int) -> ExampleSource:
    is_array = any(hasattr(x, name) for name in ("dtype", "__array__"))
    is_array = is_array or isinstance(x, (dict, list, tuple, str))
    has_rows = not is_array and hasattr(x, "__len__") and hasattr(x, "__getitem__")
    if not (isinstance(x, ExampleSource) or is_stream(x) or has_rows):
        return ArrayExamples(x, y, sample_weight, num_examples)
    if y is not None or sample_weight is not None:
        raise ValueError(
            f"Do not pass y or sample_weight with a {type(x).__name__}: each of its "
            f"elements must already be (x, y) or (x, y, sample_weight)."
        )
    if isinstance(x, ExampleSource):
        return x
    return StreamedExamples(x, num_examples) if is_stream(x) else IndexedExamples(x)


def _refuse_overlap(source: ExampleSource) -> None:
    """Raises ValueError if neighboring examples are overlapping windows of one series.

    If windows overlap, several examples contain the same value of the series, so hiding
    one example does not hide that value. Windows that were shuffled, or that share only
    one value, are not detected.
    """
    # Sources with `may_fail` are not inspected, because reading their rows may be slow
    # or have side effects.
    if source.may_fail or source.num_examples < 3:
        return
    count = min(_NEIGHBORS, source.num_examples)
    rows = source.gather(tf.range(count, dtype=tf.int64))[INPUTS]
    if any(_are_windows(leaf.numpy()) for leaf in tf.nest.flatten(rows)):
        raise ValueError(
            "The examples are windows of a series, and neighbors overlap: a point in time "
            "is in several examples, but noise hides only one example. To hide each point "
            "in time, make windows that do not overlap (sequence_stride=sequence_length). "
            "To hide only each window, use tf_bandmf.plan(..., unit='one window'). To hide "
            "a whole series, use tf_bandmf.plan(..., unit='one series') and "
            "plan.batches(x, y, users=series_ids, rows_per_user=...)."
        )


def _are_windows(rows: np.ndarray) -> bool:
    if rows.ndim < 2 or rows.shape[1] < 2:
        return False
    axes = tuple(range(1, rows.ndim))
    if np.any(rows[1:] != rows[:-1], axis=axes).mean() < _MOST:
        return False
    for stride in range(1, rows.shape[1] - 1):
        common = rows[1:, :-stride]
        same = (common == rows[:-1, stride:]).all(axis=axes)
        # A constant region, such as a margin of zeros, does not count as overlap,
        # because unrelated examples may have equal margins.
        varies = (common != common[:, :1]).any(axis=axes)
        if (same & varies).mean() >= _MOST:
            return True
    return False


def _warn_of_repetitions(hashes: np.ndarray, num_examples: int) -> None:
    """Warns if some inspected rows are equal, because they may be copies of one record."""
    repeated = len(hashes) - len(np.unique(hashes))
    if repeated:
        some = " that were inspected" if len(hashes) < num_examples else ""
        warnings.warn(
            f"{repeated} of {len(hashes)} examples{some} repeat others. The guarantee "
            f"hides one example, so it does not hold for a record that occurs in "
            f"several examples (over-sampled or repeated). Remove the repetitions, "
            f"weight classes with fit(..., class_weight=...), or make a plan whose unit "
            f"is one user. Equal records of different people are allowed.",
            stacklevel=4,
        )


def pad(content: dict[str, Any], size: tf.Tensor, static: int | None) -> dict[str, Any]:
    """Pads a batch with all-zero examples of sample weight 0.

    Args:
      content: structures of tensors whose first axis is the batch axis, of length N.
      size: size of the result, at least N.
      static: the value of `size`, if it is known when the graph is traced.

    Returns:
      The content with first dimension `size`. A `sample_weight` is added, unless the
      content has `rows`, the mask of the rows that each example contains.
    """
    count = tf.shape(tf.nest.flatten(content)[0], tf.int64)[0]
    # With `rows`, no weight is needed: padded examples contain no row, so they
    # contribute nothing.
    if SAMPLE_WEIGHT not in content and ROWS not in content:
        content = {**content, SAMPLE_WEIGHT: tf.ones([count])}

    def padded(rows: tf.Tensor) -> tf.Tensor:
        margin = [[0, size - count], *([[0, 0]] * (rows.shape.rank - 1))]
        return tf.ensure_shape(tf.pad(rows, margin), [static, *rows.shape[1:]])

    return tf.nest.map_structure(padded, content)
