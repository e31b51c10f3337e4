"""A sum of clipped updates that is the same, bit for bit, in any order of addition.

A sum of floats depends on the order of addition. To add updates in a fixed order, the
server would have to keep all of them in memory. Therefore each coordinate of an update
is rounded toward zero to an integer multiple of a unit, and the integers are added:

    added = trunc(update * factor / unit)

Here, `factor` is the clipping factor of the update, and `unit` is 2^-24 times the
smallest power of two above the clip norm.

Rounding toward zero does not increase the magnitude of any coordinate, so the
sensitivity does not increase. An update loses less than one unit in each coordinate.
The unit depends only on the clip norm: if it depended on the number of devices in a
round, an additional device would change the rounding of all updates, and the sums of
neighboring data sets would differ by more than the device's update.

For up to 127 updates, the sum is int32 and takes as much memory as the model. For more
updates, it is int64 and takes twice as much.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence

import numpy as np

from tf_bandmf.accounting.gaussian import grid_of
from tf_bandmf_federated.clipping import Bounded, bound_update
from tf_bandmf_federated.large_vectors import blocks, in_chunks

# A coordinate of a clipped update is at most 2^24 units.
_BITS = 24
# Sums of at most this many updates fit into int32 and into int64.
_FEW_UPDATES, MAX_UPDATES = 127, 1 << 32
# Number of coordinates that are added at a time.
_FOLDED = 1 << 16
# The clip norm is between 2^-80 and 2^80, so that float32 can also represent the unit.
_LARGEST_EXPONENT = 80


class ExactSum:
    """A sum of clipped updates, which takes 4 or 8 bytes per coordinate.

    Args:
      size: d, the number of coordinates in all arrays of an update.
      l2_norm_clip: zeta, the clip norm.
      most: maximum number of updates.

    Attributes:
      units: the sum, divided by `unit`: int32 or int64, shape [d].
      unit: the power of two to whose multiples all coordinates are rounded.

    Raises:
      ValueError: if the clip norm is below 2^-80 or above 2^80, or `most` is too large.
    """

    def __init__(self, size: int, l2_norm_clip: float, most: int) -> None:
        # The clip norm is at most 2^exponent.
        exponent = math.frexp(l2_norm_clip)[1]
        if abs(exponent) > _LARGEST_EXPONENT:
            raise ValueError(
                f"l2_norm_clip must be in [2^-{_LARGEST_EXPONENT}, 2^{_LARGEST_EXPONENT}], "
                f"found {l2_norm_clip:g}. Scale the updates and l2_norm_clip alike."
            )
        if most > MAX_UPDATES:
            raise ValueError(f"A sum has at most {MAX_UPDATES} updates, found {most}.")
        self.units = np.zeros(size, np.int32 if most <= _FEW_UPDATES else np.int64)
        self.unit = 2.0 ** (exponent - _BITS)
        self._clip = l2_norm_clip
        self._left = most

    def add(self, update: Sequence[np.ndarray]) -> Bounded:
        """Clips an update and adds it to the sum; a non-finite update adds nothing.

        Args:
          update: arrays of floats with d numbers in total.

        Returns:
          The update with its clipping factor.

        Raises:
          TypeError: if an array does not contain real floats.
          ValueError: if the maximum number of updates is exceeded.
        """
        bounded = bound_update(update, self._clip)
        if not bounded.is_finite:
            return bounded
        if self._left == 0:
            raise ValueError("The sum already has its maximum number of updates.")
        self._left -= 1
        # `_fold` rounds the products of `scale` and the update to float32. This
        # increases their norm by less than the margin that `bound_update` leaves below
        # the clip norm. If the factor is 1, `scale` is a power of two, and the products
        # are exact.
        scale = np.float32(bounded.factor / self.unit)
        ends = np.cumsum([array.size for array in bounded.update])
        sums = [self.units[n - a.size : n] for n, a in zip(ends, bounded.update)]
        in_chunks(functools.partial(_fold, scale), sums, bounded.update)
        return bounded

    def mean_with(
        self, noise: Iterable[np.ndarray], stddev: float, denominator: float
    ) -> np.ndarray:
        """Returns the noisy mean, `(sum + stddev * noise) / denominator`, as float32.

        The mean is rounded to multiples of `grid_of(stddev / denominator)`, a power of
        two that is at most 2^-10 times the standard deviation of the mean's noise. The
        mean overwrites the memory of the sum, so the sum cannot be used afterwards.

        Args:
          noise: consecutive parts of the noise vector, which has d float32 entries.
          stddev: factor by which `noise` is multiplied before it is added.
          denominator: a public constant.
        """
        # Each float32 result overwrites only integers that have already been read.
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
            raise ValueError(f"noise must have {noisy.size} entries, found {start}.")
        self.units = np.zeros(0, self.units.dtype)
        return noisy


def _fold(scale: np.float32, sums: np.ndarray, vector: np.ndarray) -> None:
    """Rounds `scale * vector` toward zero, and adds the integers to `sums`."""
    size = min(_FOLDED, vector.size)
    scaled, whole = np.empty(size, np.float32), np.empty(size, np.int32)
    for block in blocks(0, vector.size, _FOLDED):
        part, total = vector[block], sums[block]
        if part.size < size:
            scaled, whole = scaled[: part.size], whole[: part.size]
        np.multiply(part, scale, scaled)
        # The conversion of floats to integers rounds toward zero.
        np.copyto(whole, scaled, "unsafe")
        np.add(total, whole, total)
