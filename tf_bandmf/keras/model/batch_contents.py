"""What a batch holds: of a schedule, or of a stream that the caller makes."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping import present_rows
from tf_bandmf.sampling import batches as batches_lib


class Contents(NamedTuple):
    """What the clipping sees of a batch: tensors [B, ...], or None.

    Attributes:
      x: inputs.
      y: targets.
      sample_weight: weights.
      rows: which rows each unit has.
      shares: which part of the clip norm each example may contribute.
      count: how many examples there are, int32 scalar, if rows pad the batch.
    """

    x: Any
    y: Any = None
    sample_weight: Any = None
    rows: Any = None
    shares: Any = None
    count: Any = None

    @classmethod
    def of(cls, batch: Any) -> Contents:
        """Those of a batch of any kind, or of its specs."""
        batch = given(batch)
        if not batches_lib.is_scheduled_batch(batch):
            return cls(*keras.utils.unpack_x_y_sample_weight(batch))
        x, y, weight, rows, shares = (batch.get(key) for key in batches_lib.CONTENT)
        shares = None if rows is not None else shares
        return cls(x, y, weight, rows, shares, batch.get(batches_lib.NUM_EXAMPLES))

    def by_row(self) -> tuple[Any, Any, Any]:
        """Inputs, targets and sample weights, row by row."""
        found = self[:3]
        return found if self.rows is None else present_rows(found, self.rows)


def given(data: Any) -> Any:
    """A batch of an iterator or of `train_on_batch`, or its specs, as it was made.

    None stands for what has no value.
    """

    def value(leaf: Any) -> Any:
        none = (tf.experimental.Optional, tf.OptionalSpec)
        return None if isinstance(leaf, none) else leaf

    data = keras.tree.map_structure(value, data)
    if isinstance(data, tuple) and batches_lib.is_scheduled_batch(data[0]):
        if any(item is not None for item in data[1:]):
            raise ValueError("A scheduled batch holds its targets and weights itself.")
        return data[0]
    return data
