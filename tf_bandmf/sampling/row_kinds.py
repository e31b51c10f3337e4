"""What the rows of a source of the caller's are: their shapes and dtypes, in one place.

An example that cannot be read, or has another shape, is a row of zeros with the weight 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_bandmf.sampling.failing import with_weights
from tf_bandmf.sampling.sources import text_as_bytes

# So many examples of one shape and dtype show what examples are.
_ALIKE = 3

# Leaves of neighboring examples, whose first dimension is the example.
Leaves = list[np.ndarray]


class RowKinds:
    """The structure of an example, and the shapes and dtypes of its leaves.

    Args:
      samples: contents of blocks of examples. The first kind of which there are three
        counts, or else the one that is there most often: the first example may be the one
        that is damaged.

    Attributes:
      structure: of the contents.
      kinds: (shape of a row, dtype) of each leaf.

    Raises:
      ValueError: if there are none.
    """

    def __init__(self, samples: Iterable[dict[str, Any]]) -> None:
        found: dict[str, list[dict[str, Any]]] = {}
        for content in samples:
            alike = found.setdefault(str(_kinds(tf.nest.flatten(content))), [])
            alike.append(content)
            if len(alike) == _ALIKE:
                break
        if not found:
            raise ValueError("The data set has no examples that can be read.")
        self.structure = max(found.values(), key=len)[0]
        self.kinds = _kinds(tf.nest.flatten(self.structure))

    def checked(self, content: dict[str, Any]) -> Leaves:
        """The leaves of some examples; raises ValueError if they are of another kind."""
        leaves = tf.nest.flatten(content)
        kinds = _kinds(leaves)
        if kinds != self.kinds:
            raise ValueError(
                f"The examples must have one structure, shape and dtype, found {kinds} "
                f"after {self.kinds}. Pad or cut them to one shape."
            )
        return leaves

    def rows_of_each(self) -> int | None:
        """The first dimension of all leaves of an example: it may be a batch; or None."""
        sizes = {shape[0] if shape else None for shape, _ in self.kinds}
        return sizes.pop() if len(sizes) == 1 else None

    def blank(self, count: int) -> Leaves:
        """Rows of zeros, for examples that cannot be read."""
        leaves = [np.zeros((count, *shape), dtype) for shape, dtype in self.kinds]
        for leaf in leaves:
            if leaf.dtype == object:
                leaf[...] = b""
        return leaves

    def packed(self, leaves: Leaves) -> dict[str, Any]:
        """The content that some leaves are of."""
        return tf.nest.pack_sequence_as(self.structure, leaves)

    def gathered(
        self,
        read: Callable[[np.ndarray], tuple[Leaves, np.ndarray]],
        indices: tf.Tensor,
    ) -> dict[str, Any]:
        """What a function of indices reads, in a graph too.

        Args:
          read: returns leaves, and which examples could be read, bool, shape [N].
          indices: int64, shape [N].
        """

        def rows(indices: np.ndarray) -> list[np.ndarray]:
            leaves, works = read(indices)
            return [*leaves, works]

        dtypes = [*(tf.as_dtype(dtype) for _, dtype in self.kinds), tf.bool]
        *found, works = tf.numpy_function(rows, [indices], dtypes)
        leaves = [
            tf.ensure_shape(leaf, [None, *shape])
            for leaf, (shape, _) in zip(found, self.kinds)
        ]
        return with_weights(self.packed(leaves), tf.ensure_shape(works, [None]))


def refuse_most_failed(works: np.ndarray, what: str) -> None:
    """Raises ValueError if half of some examples or more could not be read."""
    failed = int(works.size - works.sum())
    if failed and 2 * failed >= works.size:
        raise ValueError(
            f"{what}: {failed} of {works.size} examples raise an error, or have another "
            f"shape or dtype than others. Examples must have one shape: pad or cut them. A "
            f"few that cannot be read count zero, but not most of them."
        )


def rows_of(value: Any, count: int | None = None) -> np.ndarray:
    """An array whose first dimension is the example.

    Args:
      value: what the caller's code returned.
      count: how many rows there must be, if that is known.

    Raises:
      ValueError: if there are others.
    """
    result = text_as_bytes(np.asarray(value))
    if not result.ndim or (count is not None and len(result) != count):
        expected = "rows" if count is None else f"as many rows as indices, {count}"
        raise ValueError(
            f"A block of examples must have {expected}; found an array of shape "
            f"{result.shape}."
        )
    return result


def _kinds(leaves: Iterable[np.ndarray]) -> list[tuple[tuple[int, ...], np.dtype]]:
    return [(leaf.shape[1:], leaf.dtype) for leaf in leaves]
