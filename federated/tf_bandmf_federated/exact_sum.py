"""The sum of clipped updates: folded in one by one, and the same bit for bit in any order.

Sums of floats depend on their order, and a server that waits for all updates to put them
in order holds them all. Here each update is rounded to whole multiples of a unit, toward
zero, and whole numbers are added. They are kept in float64, which adds them exactly up to
2^53, and faster than NumPy converts to integers:

    added = trunc(update * factor / unit),   unit = 2^-30 times a power of two >= the clip

Rounding toward zero makes no coordinate larger, hence no norm: the sensitivity is that of
the clipped updates. An update loses less than one unit in each coordinate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tf_bandmf_federated.clipping import Bounded, bound_update
from tf_bandmf_federated.large_vectors import BLOCK, blocks, in_chunks

# A coordinate of a clipped update has at most 2^30 units; 2^53 of them are exact.
_BITS = 30
MAX_UPDATES = 1 << (53 - _BITS)
_LARGEST_EXPONENT = 80  # of the clip norm: float32 has its units, too


class ExactSum:
    """A sum that updates are added to as they come. Memory: 8 bytes a coordinate.

    Args:
      size: d, numbers of an update in all its arrays.
      l2_norm_clip: zeta.

    Attributes:
      units: the sum, in units, as whole numbers: float64, shape [d].
      unit: how much one is.

    Raises:
      ValueError: if the clip norm is below 2^-80 or above 2^80.
    """

    def __init__(self, size: int, l2_norm_clip: float) -> None:
        exponent = math.frexp(l2_norm_clip)[1]  # clip <= 2^exponent
        if abs(exponent) > _LARGEST_EXPONENT:
            raise ValueError(
                f"l2_norm_clip must be in [2^-{_LARGEST_EXPONENT}, "
                f"2^{_LARGEST_EXPONENT}], found {l2_norm_clip:g}: scale the updates."
            )
        self.units = np.zeros(size)
        self.unit = 2.0 ** (exponent - _BITS)
        self._clip = l2_norm_clip
        self._count = 0

    def add(self, update: Sequence[np.ndarray]) -> Bounded:
        """Clips an update and adds it; one that is not finite adds nothing.

        Args:
          update: arrays of floats, of d numbers in all.

        Returns:
          What was done to it.

        Raises:
          TypeError: if an array does not hold real floats.
          ValueError: after 2^23 updates, whose sum may not be exact.
        """
        bounded = bound_update(update, self._clip)
        if not bounded.is_finite:
            return bounded
        if self._count == MAX_UPDATES:
            raise ValueError(f"A round adds up at most {MAX_UPDATES} updates.")
        self._count += 1
        # The product is rounded to float32 by less than `bound_update` leaves room for,
        # and exact if the factor is 1.
        scale = np.float32(bounded.factor / self.unit)
        start = 0
        for array in bounded.arrays:
            flat, total = np.ravel(array), self.units[start : start + array.size]

            def fold(
                begin: int, end: int, flat: np.ndarray = flat, total: np.ndarray = total
            ) -> None:
                units = np.empty(BLOCK, np.float32)
                for block in blocks(begin, end):
                    part = units[: block.stop - block.start]
                    np.multiply(flat[block], scale, out=part)
                    np.trunc(part, out=part)
                    np.add(total[block], part, out=total[block])

            in_chunks(flat.size, fold)
            start += array.size
        return bounded

    def mean_with(
        self, noise: np.ndarray, stddev: float, denominator: float
    ) -> np.ndarray:
        """`(sum + stddev noise) / denominator`, float32. It takes the sum's memory.

        Args:
          noise: float32, shape [d].
          stddev: of the noise per unit of `noise`.
          denominator: a public constant.
        """
        # float32 numbers are written where float64 ones were read before.
        found = self.units.view(np.float32)[: self.units.size]
        for block in blocks(0, self.units.size):
            part = self.units[block] * self.unit
            part += stddev * noise[block].astype(np.float64)
            part /= denominator
            found[block] = part
        self.units = np.zeros(0)
        return found
