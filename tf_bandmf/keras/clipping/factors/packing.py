"""Gradients of small variables, measured and summed side by side.

A network has dozens of scales and biases. By itself each needs some twenty operations:
little in a step, but much of what the first one takes, which has to trace and optimize
them. So small ones are put behind one another, [B, n_1 + n_2 + ...], and are measured as
one vector.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_bandmf.keras.clipping.factors.base import Factor, Instantiated, Measured
from tf_bandmf.keras.clipping.factors.norms import BLOCK, accelerator
from tf_bandmf.keras.clipping.tensors.batches import reshape_examples

# Elements of a variable that is put beside others.
_SMALL = BLOCK // 2


class Part(NamedTuple):
    """Gradients of variables of one group that are measured together.

    Attributes:
      members: positions of the variables.
      shapes: of the variables.
      group: number of their group.
      measured: of one variable, or of all of them flat and behind one another.
    """

    members: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    group: int
    measured: Measured

    def sums(
        self, weights: tf.Tensor, tensors: Sequence[tf.Tensor]
    ) -> dict[int, tf.Tensor]:
        """Weighted sums of the gradients by position, in the variables' shapes.

        Args:
          weights: [B] float32.
          tensors: those of `measured`, cleaned.
        """
        total = self.measured.weighted_sum(weights, tensors)
        if isinstance(total, tf.IndexedSlices):
            return {self.members[0]: total}
        if len(self.members) == 1:
            return {self.members[0]: tf.ensure_shape(total, self.shapes[0])}
        pieces = tf.split(total, [math.prod(shape) for shape in self.shapes])
        everything = zip(self.members, pieces, self.shapes, strict=True)
        return {
            member: piece if len(shape) == 1 else tf.reshape(piece, shape)
            for member, piece, shape in everything
        }


def measured_parts(
    factors: Mapping[int, Factor],
    variables: Sequence[Any],
    groups: Sequence[int],
) -> list[Part]:
    """Measures gradients, those of small variables together.

    Args:
      factors: gradients of variables, by position.
      variables: all of them.
      groups: of each variable, the number of its group.

    Returns:
      Parts that have each position of `factors` once.
    """
    parts = []
    for group in sorted({groups[position] for position in factors}):
        positions = [position for position in factors if groups[position] == group]
        for members in _rooms(positions, factors):
            shapes = tuple(tuple(variables[member].shape) for member in members)
            factor = factors[members[0]]
            if len(members) > 1:
                flat = [_flat(factors[member]) for member in members]
                factor = Instantiated(tf.concat(flat, axis=1))
            parts.append(Part(members, shapes, group, factor.measure()))
    return parts


def _rooms(
    positions: Sequence[int], factors: Mapping[int, Factor]
) -> list[tuple[int, ...]]:
    """Splits positions into those that are measured together."""
    rooms: list[tuple[int, ...]] = []
    small: list[int] = []
    taken = 0
    for position in positions:
        size = _size(factors[position])
        if accelerator() or not 0 < size <= _SMALL:
            rooms.append((position,))
            continue
        if taken + size > BLOCK:
            rooms.append(tuple(small))
            small, taken = [], 0
        small.append(position)
        taken += size
    return [*rooms, tuple(small)] if small else rooms


def _size(factor: Factor) -> int:
    """Elements of a variable whose gradients are there and whose shape is known, or 0."""
    if type(factor) is not Instantiated:
        return 0
    return factor.gradients.shape[1:].num_elements() or 0


def _flat(factor: Factor) -> tf.Tensor:
    gradients = factor.instantiate()
    if gradients.shape.rank == 2:
        return gradients
    return reshape_examples(gradients, _size(factor))
