"""The sum of clipped updates, added one by one; the same bit for bit in any order.

Sums of floats depend on their order, and a server that puts all updates in order must hold
all of them. Here each update is rounded toward zero to whole multiples of a unit, and whole
numbers are added:

    added = trunc(update * factor / unit),   unit = 2^-24 times a power of two >= the clip

Rounding toward zero makes no coordinate larger, hence no norm: the sensitivity is that of
the clipped updates. An update loses less than one unit in each coordinate. The unit follows
from the clip norm alone: if it depended on how many devices a round has, one device more
would round all updates differently, and sums of neighbors would differ by more than its
own update.

The sum takes as much memory as the model for up to 127 updates (int32), else twice as much.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence

import numpy as np

from tf_bandmf.accounting.gaussian import grid_of
from tf_bandmf_federated.clipping import Bounded, bound_update
from tf_bandmf_federated.large_vectors import blocks, in_chunks

# A coordinate of a clipped update has at most 2^24 units.
_BITS = 24
# The most updates whose sum fits into int32, and into int64.
_FEW_UPDATES, MAX_UPDATES = 127, 1 << 32
# Numbers that are added at a time.
_FOLDED = 1 << 16
_LARGEST_EXPONENT = 80  # of the clip norm; float32 has room for the unit, too


class ExactSum:
    """A sum to which updates are added as they arrive; 4 or 8 bytes for each coordinate.

    Args:
      size: d, the number of coordinates in all arrays of an update.
      l2_norm_clip: zeta.
      most: the largest number of updates.

    Attributes:
      units: the sum, in units: int32 or int64, shape [d].
      unit: the value of one unit.

    Raises:
      ValueError: if the clip norm is below 2^-80 or above 2^80, or `most` is too large.
    """

    def __init__(self, size: int, l2_norm_clip: float, most: int) -> None:
        exponent = math.frexp(l2_norm_clip)[1]  # clip <= 2^exponent
        if abs(exponent) > _LARGEST_EXPONENT:
            raise ValueError(
                f"l2_norm_clip must be in [2^-{_LARGEST_EXPONENT}, "
                f"2^{_LARGEST_EXPONENT}], found {l2_norm_clip:g}: scale the updates."
            )
        if most > MAX_UPDATES:
            raise ValueError(f"A round adds up at most {MAX_UPDATES} updates.")
        self.units = np.zeros(size, np.int32 if most <= _FEW_UPDATES else np.int64)
        self.unit = 2.0 ** (exponent - _BITS)
        self._clip = l2_norm_clip
        self._left = most

    def add(self, update: Sequence[np.ndarray]) -> Bounded:
        """Clips an update and adds it; an update that is not finite adds nothing.

        Args:
          update: arrays of floats, of d numbers in all.

        Returns:
          The update, and how it was clipped.

        Raises:
          TypeError: if an array does not hold real floats.
          ValueError: if this is more than the largest number of updates.
        """
        bounded = bound_update(update, self._clip)
        if not bounded.is_finite:
            return bounded
        if self._left == 0:
            raise ValueError("More updates came than the sum has room for.")
        self._left -= 1
        # Rounding the product to float32 adds less than the margin that `bound_update`
        # leaves; if the factor is 1, the product is exact.
        scale = np.float32(bounded.factor / self.unit)
        ends = np.cumsum([array.size for array in bounded.update])
        sums = [self.units[n - a.size : n] for n, a in zip(ends, bounded.update)]
        in_chunks(functools.partial(_fold, scale), sums, bounded.update)
        return bounded

    def mean_with(
        self, noise: Iterable[np.ndarray], stddev: float, denominator: float
    ) -> np.ndarray:
        """`(sum + stddev noise) / denominator`, float32, in multiples of `grid_of`.

        It is written into the memory of the sum, which is lost.

        Args:
          noise: float32, d numbers in consecutive parts.
          stddev: standard deviation of the noise that is added, per unit of `noise`.
          denominator: a public constant.
        """
        # Each float32 is written over integers that were read before.
        noisy = self.units.view(np.float32)[: self.units.size]
        start, grid = 0, grid_of(stddev / denominator)
        for part in noise:
            for block in blocks(0, part.size):
                place = slice(start + block.start, start + block.stop)
                mean = np.multiply(self.units[place], self.unit)
                mean += stddev * part[block].astype(np.float64)
                mean /= denominator * grid
                noisy[place] = np.rint(mean, mean) * grid
            start += part.size
        if start != noisy.size:
            raise ValueError(f"The noise has {start} numbers, the sum {noisy.size}.")
        self.units = np.zeros(0, self.units.dtype)
        return noisy


def _fold(scale: np.float32, sums: np.ndarray, vector: np.ndarray) -> None:
    """Adds a vector, in units rounded toward zero, to the sums."""
    size = min(_FOLDED, vector.size)
    scaled, whole = np.empty(size, np.float32), np.empty(size, np.int32)
    for block in blocks(0, vector.size, _FOLDED):
        part, total = vector[block], sums[block]
        if part.size < size:
            scaled, whole = scaled[: part.size], whole[: part.size]
        np.multiply(part, scale, scaled)
        np.copyto(whole, scaled, "unsafe")  # toward zero
        np.add(total, whole, total)
