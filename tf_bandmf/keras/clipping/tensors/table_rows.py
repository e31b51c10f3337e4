"""Gradients of tables as the rows that are not zero, to compare them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf


class TableRows(NamedTuple):
    """Rows of a table.

    Attributes:
      rows: each once, sorted.
      values: float64, shape [rows, columns].
    """

    rows: np.ndarray[Any, Any]
    values: np.ndarray[Any, Any]

    @classmethod
    def of(cls, gradient: Any, scale: float = 1.0) -> TableRows:
        """From `tf.IndexedSlices`, where rows may repeat; divided by a scale.

        Negative indices are no rows; a dense gradient is that of nothing, all zeros.
        """
        if not isinstance(gradient, tf.IndexedSlices):
            width = int(gradient.shape[-1])
            return cls(np.zeros([0], np.int64), np.zeros([0, width]))
        ids = gradient.indices.numpy()
        rows, places = np.unique(ids[ids >= 0], return_inverse=True)
        values = np.zeros([len(rows), int(gradient.values.shape[-1])])
        np.add.at(values, places, gradient.values.numpy()[ids >= 0] / scale)
        return cls(rows, values)

    def among(self, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The values of these rows, which are sorted and hold all of its own."""
        found = np.zeros([len(rows), self.values.shape[1]])
        found[np.searchsorted(rows, self.rows)] = self.values
        return found


def side_by_side(gradients: list[list[Any]]) -> list[list[Any]]:
    """Gradients of the same variables, with tables as arrays of rows that any one has.

    Tables are `TableRows` or `tf.IndexedSlices`.
    """
    found = [
        [TableRows.of(g) if isinstance(g, tf.IndexedSlices) else g for g in own]
        for own in gradients
    ]
    for place, first in enumerate(found[0]):
        if isinstance(first, TableRows):
            rows = np.unique(np.concatenate([own[place].rows for own in found]))
            for own in found:
                own[place] = own[place].among(rows)
    return found
