"""Clipping units of several rows: the views of one example, or the records of one user.

A unit is what the sampler draws, what is clipped, and whose presence is hidden. Its loss
is the mean of its rows' losses. A batch of N units has contents of shape [N, K, ...] and
`rows`, bool [N, K], which says which rows are there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tf_bandmf.sampling.given import refuse_overlap, source_of, warn_of_repetitions
from tf_bandmf.sampling.mapped import MappedExamples
from tf_bandmf.sampling.ranges import RangedExamples
from tf_bandmf.sampling.sources import ROWS, Draw, ExampleSource, WrappedExamples


def examples_of(
    num_units: int,
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
) -> ExampleSource:
    """The source of what `Plan.batches` was given.

    Args:
      num_units: the plan's number of examples, or of users.
      x: see `Plan.batches`, as for all that follows.
      y: targets.
      sample_weight: weights of rows.
      may_overlap: whether neighbors may be windows of a series that overlap.
      map: a function of single rows.
      views: of each row.
      users: whose each row is.
      rows_per_user: at a step.
      ranges: of inputs and targets.

    Raises:
      TypeError, ValueError: if the arguments do not fit each other or the plan.
    """
    num_rows = num_units if users is None else np.shape(users)[0]
    rows = source_of(x, y, sample_weight, num_rows)
    if rows.has_own_order and users is not None:
        raise ValueError(
            "The rows of a user are read by index, and a data set has only its own order. "
            "Use tf_bandmf.sampling.cache_dataset(dataset, directory), or arrays."
        )
    if not may_overlap:
        refuse_overlap(rows)
    if users is None:
        warn_of_repetitions(rows)
    if ranges is not None:
        rows = RangedExamples(rows, ranges)
    if map is not None:
        rows = MappedExamples(rows, map)
    elif views != 1:
        raise ValueError(
            f"views = {views} views of an example need map, which makes them differ."
        )
    if users is None and rows_per_user is None and views == 1:
        return rows
    units = UnitExamples(rows, users, rows_per_user, views)
    if units.num_examples != num_units:
        raise ValueError(
            f"The plan is for {num_units} {'examples' if users is None else 'users'}, "
            f"found {units.num_examples}. Its num_examples is the number of units that "
            f"are drawn. Make a plan for this data set."
        )
    return units


class UnitExamples(WrappedExamples):
    """Units of up to K rows.

    Args:
      rows: source of the rows.
      users: None, where each row is a unit; or whose each row is, shape [rows], integers
        or strings. A unit is then a user.
      rows_per_user: the most rows of a user that a step takes; if he has more, a step
        takes a random choice of them.
      views: of each row, by which K is larger.

    Attributes:
      num_examples: number of units.
      rows_per_unit: K.

    Raises:
      ValueError: if the numbers are not valid, or there are not as many users as rows.
    """

    def __init__(
        self,
        rows: ExampleSource,
        users: Any = None,
        rows_per_user: int | None = None,
        views: int = 1,
    ) -> None:
        if isinstance(views, bool) or not isinstance(views, int) or views < 1:
            raise ValueError(f"views must be an integer >= 1, found {views!r}.")
        super().__init__(rows)
        self._views = views
        self._most = 1
        self._row_ids: np.ndarray | None = None
        if users is None:
            if rows_per_user is not None:
                raise ValueError("rows_per_user needs users: say whose each row is.")
        else:
            self._group(np.asarray(users), rows_per_user)
        self.rows_per_unit = self._most * views

    def _group(self, users: np.ndarray, rows_per_user: int | None) -> None:
        if users.ndim != 1 or users.shape[0] != self._examples.num_examples:
            raise ValueError(
                f"users must say whose each of the {self._examples.num_examples} rows is, "
                f"found an array of shape {users.shape}."
            )
        if isinstance(rows_per_user, bool) or not (
            isinstance(rows_per_user, int) and rows_per_user >= 1
        ):
            raise ValueError(
                f"rows_per_user must be an integer >= 1, found {rows_per_user!r}: the most "
                f"rows of a user that a step takes."
            )
        _, whose = np.unique(users, return_inverse=True)
        self._most = rows_per_user
        self._row_ids = np.argsort(whose, kind="stable").astype(np.int64)
        counts = np.bincount(whose)
        self._ends = np.cumsum(counts)
        self._starts = self._ends - counts
        self.num_examples = int(counts.size)

    def gather(self, indices: tf.Tensor) -> dict[str, Any]:
        raise TypeError("Units of several rows are read at a step: drawn().")

    def drawn(self, indices: tf.Tensor, draw: Draw, views: int = 1) -> dict[str, Any]:
        del views  # those of the constructor
        most, views = self._most, self._views
        if self._row_ids is None:
            ids = tf.cast(indices, tf.int64)[:, None]
            present = tf.fill(tf.shape(ids), True)
        else:
            ids, present = tf.numpy_function(
                lambda chosen, step: self._choose(chosen, int(step), draw.base),
                [indices, draw.step],
                [tf.int64, tf.bool],
            )
            ids = tf.ensure_shape(ids, [None, most])
            present = tf.ensure_shape(present, [None, most])
        flat = tf.reshape(ids, [-1])
        content = self._examples.drawn(flat, draw, views)
        size = tf.shape(ids)[0]

        def by_unit(tensor: tf.Tensor) -> tf.Tensor:
            shape = tf.concat([[size, most * views], tf.shape(tensor)[1:]], axis=0)
            units = tf.reshape(tensor, shape)
            return tf.ensure_shape(units, [None, most * views, *tensor.shape[1:]])

        content = tf.nest.map_structure(by_unit, content)
        return {**content, ROWS: tf.repeat(present, views, axis=1)}

    def _choose(
        self, units: np.ndarray, step: int, base: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Row ids [N, K] and which of them count; a first row fills what is missing."""
        assert self._row_ids is not None
        ids = np.empty((len(units), self._most), np.int64)
        present = np.zeros((len(units), self._most), bool)
        for place, unit in enumerate(units):
            own = self._row_ids[self._starts[unit] : self._ends[unit]]
            if own.size > self._most:
                # Its stream is frozen by NumPy's compatibility policy.
                seed = np.append(base.view(np.uint32), [step, unit])
                order = np.random.RandomState(seed).permutation(own.size)
                own = own[np.sort(order[: self._most])]
            ids[place] = own[0]
            ids[place, : own.size] = own
            present[place, : own.size] = True
        return ids, present

    def weighted(
        self, weigh: Callable[[ExampleSource], ExampleSource]
    ) -> ExampleSource:
        """The same units of weighted rows."""
        other, rows = object.__new__(type(self)), self._examples.weighted(weigh)
        changed = {"_examples": rows, "remarks": rows.remarks}
        vars(other).update({**vars(self), **changed})
        return other

    def update_digest(self, update: Callable[[Any], None]) -> None:
        super().update_digest(update)
        update(f"units {self._most} {self._views}".encode())
        if self._row_ids is not None:
            update(self._row_ids.tobytes() + self._starts.tobytes())
