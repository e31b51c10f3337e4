"""The sum of a step as one vector, in pieces where joining it would be expensive.

The noise is for all weights as one vector, and its key contains a digest of all of
their sums. A table of ten million numbers is most of that vector, and copying it takes
longer than hashing it. So large parts stay where they are, and the others are joined
between them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

# What is not copied: parts of at least so many numbers, and of such a share of all: some
# programs are compiled for each. Copies of a sum of 700,000 numbers cost a step nothing
# that could be measured; five programs more cost its process a sixth of its start.
_LARGE, _SHARE = 1 << 20, 16


class StepSum(NamedTuple):
    """The sum of a step.

    Attributes:
      groups: its parts, see `groups_of`.
      pieces: the same, each group as one vector.
    """

    groups: list[list[tf.Tensor]]
    pieces: list[tf.Tensor]

    @classmethod
    def of(cls, parts: Sequence[tf.Tensor], in_pieces: bool) -> StepSum:
        """The sum that has these parts, one after the other.

        Args:
          parts: vectors of static sizes.
          in_pieces: whether it may be in several.
        """
        parts = list(parts)
        # Of an even size, for the digest: a zero is cheaper than a copy.
        if sum(part.shape[0] for part in parts) % 2:
            parts.append(tf.zeros([1]))
        groups = groups_of(parts) if in_pieces else [parts]
        return cls(groups, [_joined(group) for group in groups])

    @property
    def value(self) -> tf.Tensor | list[tf.Tensor]:
        """One vector, or its pieces."""
        return self.pieces[0] if len(self.pieces) == 1 else self.pieces


def groups_of(parts: Sequence[tf.Tensor]) -> list[list[tf.Tensor]]:
    """Parts of a vector in groups, in order; large ones are by themselves.

    Pieces of an odd size would be copied by the digest: those have no large part that
    begins or ends at an odd place.

    Args:
      parts: vectors of static sizes, of an even size together.
    """
    sizes = [int(part.shape[0]) for part in parts]
    least = max(_LARGE, sum(sizes) // _SHARE)
    groups: list[list[tf.Tensor]] = []
    place, is_open = 0, False
    for part, size in zip(parts, sizes):
        if size >= least and place % 2 == 0 and size % 2 == 0:
            groups.append([part])
            is_open = False
        elif is_open:
            groups[-1].append(part)
        else:
            groups.append([part])
            is_open = True
        place += size
    return groups


def _joined(group: Sequence[tf.Tensor]) -> tf.Tensor:
    """A group's parts as one vector."""
    return group[0] if len(group) == 1 else tf.concat(group, axis=0)


def apart(
    pieces: Sequence[tf.Tensor],
    groups: Sequence[Sequence[tf.Tensor]],
    variables: Sequence[Any],
) -> list[tf.Tensor]:
    """What belongs to each variable, in its shape.

    Args:
      pieces: by group, the numbers of its variables one after the other.
      groups: which have a part for each variable, and maybe others after all of these.
      variables: in order.
    """
    remaining, found = iter(variables), []
    for piece, group in zip(pieces, groups, strict=True):
        own = list(itertools.islice(remaining, len(group)))
        if not own:
            continue
        sizes = [math.prod(variable.shape) for variable in own]
        split = [piece] if len(own) == 1 else tf.split(piece, sizes)
        found += [reshaped(part, v.shape) for part, v in zip(split, own)]
    return found


def reshaped(tensor: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """As `tf.reshape`, without an operation for a vector that stays one."""
    if tensor.shape.rank == len(shape) == 1:
        return tensor
    return tf.reshape(tensor, shape)
