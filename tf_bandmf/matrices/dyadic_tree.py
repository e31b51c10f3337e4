"""The binary tree of partial sums, as a square strategy matrix.

The tree mechanism releases noisy sums over all complete dyadic intervals
`[j 2^l, (j + 1) 2^l)` of the `n` steps: a rectangular strategy `C_T` with one row per
interval. Its optimal decoder is its pseudo-inverse `C_T^+`: the 'full' estimator of
Honaker, also known as OPTIMAL TREEAGG (arXiv:2306.08153, App. C).

Sensitivity and error depend only on the Gram matrix `X = C_T^T C_T`. The square
lower-triangular matrix `C` with `C^T C = X` can therefore replace `C_T`. For every
vector `x`, `C x` and `C_T x` have equal norms. For every workload `A`, the rows of
`A C^-1` and of `A C_T^+` have the same Gram matrix, `A X^-1 A^T`, and thus equal norms.
Because `C` is lower triangular, the optimal decoder can run online, step by step
(arXiv:2202.08312).
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np

from tf_bandmf.matrices.base import check_num_rows, register
from tf_bandmf.matrices.dense import Dense, lower_triangular_factor

# `max_squared_counts` stores at most this many placements of a given number of
# participations in an interval of steps.
_MAX_WAYS = 256


@register
class DyadicTree(Dense):
    """The square strategy matrix of the binary tree mechanism with `num_rows` leaves.

    Args:
      num_rows: the number of steps, which need not be a power of two.
    """

    kind: ClassVar[str] = "dyadic_tree"

    def __init__(self, num_rows: int) -> None:
        gram = tree_gram(num_rows)
        super().__init__(lower_triangular_factor(gram))

    def exact_squared_sensitivity(
        self, min_separation: int, max_participations: int
    ) -> float | None:
        most = max_squared_counts(self.num_rows, min_separation, max_participations)
        return None if most is None else float(most)

    def to_config(self) -> dict[str, Any]:
        return {"kind": self.kind, "num_rows": self.num_rows}

    @classmethod
    def example(cls, num_rows: int) -> DyadicTree:
        return cls(num_rows)


def tree_gram(num_steps: int) -> np.ndarray:
    """Returns the Gram matrix of the binary tree's strategy.

    Returns:
      Float64, shape [num_steps, num_steps]. Entry `[i, j]` is the number of complete
      dyadic intervals that contain both steps `i` and `j`.

    Raises:
      TypeError, ValueError: if `num_steps` is not an int >= 1.
    """
    num_steps = check_num_rows(num_steps)
    gram = np.zeros((num_steps, num_steps))
    size = 1
    while size <= num_steps:
        for start in range(0, num_steps - size + 1, size):
            gram[start : start + size, start : start + size] += 1.0
        size *= 2
    return gram


@dataclasses.dataclass(frozen=True)
class _Choices:
    """Placements of a fixed number of participations in one interval of steps.

    Suppose that participations before the interval exclude the interval's first `a`
    steps. A placement is possible if `a <= latest`. It then excludes the first
    `max(earliest, a + shift)` steps after the interval.

    Attributes:
      shift: number of steps in `max(earliest, a + shift)`; the same for all placements.
      earliest: number of steps in `max(earliest, a + shift)`, shape [placements].
      latest: the largest `a` for which a placement is possible, shape [placements].
      value: sum of the squared numbers of participations over the tree's nodes in this
        interval, shape [placements].
    """

    shift: int
    earliest: np.ndarray
    latest: np.ndarray
    value: np.ndarray


def max_squared_counts(
    num_steps: int, min_separation: int, max_participations: int
) -> int | None:
    """Returns the exact squared sensitivity of the tree mechanism.

    All entries of the Gram matrix are >= 0. Therefore the sensitivity is the maximum
    norm of `C_T u`, where `C_T` has one row per node of the tree and the 0-1 vector `u`
    marks the steps of an allowed participation pattern (arXiv:2306.08153, Prop. E.1).
    `||C_T u||^2` is the sum over the nodes of the squared number of participations.

    The maximum is computed by dynamic programming, as in arXiv:2103.00039. Intervals
    that are not longer than the separation contain at most one participation. For
    longer intervals, the placements of participations in both halves are combined,
    bottom up. A placement is dropped if another one is at least as good in every
    respect.

    Args:
      num_steps: number of steps.
      min_separation: minimum number of steps between two participations of an example.
      max_participations: maximum number of participations of an example.

    Returns:
      The squared sensitivity, or None if there are too many placements to store.
    """
    b, k = min_separation, max_participations
    # Intervals that are not longer than the separation contain at most one
    # participation.
    levels: dict[int, dict[int, _Choices]] = {}
    size, nodes = 1, 1
    while size <= min(b, num_steps):
        levels[size] = {
            0: _Choices(-size, *np.array([[0], [2 * num_steps], [0]])),
            1: _Choices(b - size, *np.array([[b - size], [size - 1], [nodes]])),
        }
        size, nodes = 2 * size, nodes + 1
    while size <= num_steps:
        joined = _join(levels[size // 2], levels[size // 2], k, with_parent=True)
        if joined is None:
            return None
        levels[size] = joined
        size *= 2
    # The binary digits of `num_steps` split the steps into complete trees, the largest
    # first.
    total = {0: _Choices(0, *np.array([[0], [2 * num_steps], [0]]))}
    for exponent in reversed(range(num_steps.bit_length())):
        if num_steps >> exponent & 1:
            joined = _join(total, levels[2**exponent], k, with_parent=False)
            if joined is None:
                return None
            total = joined
    return max(int(choices.value.max()) for choices in total.values())


def _join(
    left: dict[int, _Choices],
    right: dict[int, _Choices],
    max_count: int,
    with_parent: bool,
) -> dict[int, _Choices] | None:
    """Combines placements of participations in two adjacent intervals of steps.

    Args:
      left: placements in the first interval, by number of participations.
      right: placements in the second interval, by number of participations.
      max_count: maximum number of participations.
      with_parent: True if the tree has a node that contains both intervals.

    Returns:
      The placements in both intervals together, by number of participations. None if
      there are too many to store.
    """
    joined: dict[int, _Choices] = {}
    highest = min(max(left) + max(right), max_count)
    for count in range(highest + 1):
        ways = []
        shift = 0
        for first_count, first in left.items():
            second = right.get(count - first_count)
            if second is None:
                continue
            # `shift` depends only on the total `count`, so all ways to divide the
            # participations between the two intervals give the same value.
            shift = first.shift + second.shift
            i, j = np.nonzero(first.earliest[:, None] <= second.latest)
            earliest = np.maximum(second.earliest[j], first.earliest[i] + second.shift)
            latest = np.minimum(first.latest[i], second.latest[j] - first.shift)
            value = first.value[i] + second.value[j]
            ways.append(_undominated(np.stack([earliest, -latest, -value])))
        ways = [way for way in ways if way.size]
        if not ways:
            continue
        best = _undominated(np.concatenate(ways, axis=1))
        if best.shape[1] > _MAX_WAYS:
            return None
        squared = count**2 if with_parent else 0
        joined[count] = _Choices(shift, best[0], -best[1], squared - best[2])
    return joined


def _undominated(ways: np.ndarray) -> np.ndarray:
    """Returns the distinct columns of an array [3, m] that no other column dominates.

    A column dominates another column if each of its entries is less than or equal to the
    other column's entry in the same row.
    """
    ways = np.unique(ways, axis=1)
    kept = ways[:, :0]
    # `np.unique` sorts the columns lexicographically, so only earlier columns can
    # dominate a column.
    while ways.shape[1]:
        first, ways = ways[:, :1], ways[:, 1:]
        kept = np.concatenate([kept, first], axis=1)
        ways = ways[:, np.any(ways < first, axis=0)]
    return kept
