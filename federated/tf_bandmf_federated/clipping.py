"""Clipping of an update in NumPy: on a device before it leaves, on a server again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# Below 1 by more than what rounding products to float32 can add, relatively.
_ROOM = 1.0 - 2.0**-22
# More than what it adds to a subnormal product, absolutely.
_TINY = float(np.finfo(np.float32).smallest_subnormal)


# Numbers that are worked on at a time, so that large models need no second copy.
BLOCK = 1 << 16


class Bounded(NamedTuple):
    """An update with what it is multiplied by before it is added.

    Attributes:
      arrays: float32, not clipped yet.
      factor: in [0, 1]; 1.0 leaves them as they are, 0.0 makes zeros of anything.
      contributes: whether it enters the sum as other than zeros.
      is_finite: whether all values and the norm were.
      is_huge: whether the norm exceeded the zeroing norm.
      was_clipped: whether the norm exceeded the clip norm.
    """

    arrays: list[np.ndarray]
    factor: float
    contributes: bool
    is_finite: bool
    is_huge: bool
    was_clipped: bool


class Clipped(NamedTuple):
    """A contribution, and what was done to it.

    Attributes:
      update: float32, norm at most the clip norm; zeros if it does not contribute.
      contributes: see `Bounded`, as the others.
    """

    update: list[np.ndarray]
    contributes: bool
    is_finite: bool
    is_huge: bool
    was_clipped: bool


def bound_update(
    update: Sequence[np.ndarray],
    l2_norm_clip: float,
    zeroing_norm: float | None = None,
) -> Bounded:
    """What `clip_update` does, without doing it: for sums that are made in parts.

    Args:
      update: arrays of floats, which are taken as float32.
      l2_norm_clip: zeta.
      zeroing_norm: or None.

    Raises:
      TypeError: if an array does not hold real floats.
    """
    arrays = [np.asarray(array) for array in update]
    for array in arrays:
        if array.dtype.kind != "f":
            raise TypeError(f"An update has arrays of floats, found {array.dtype}.")
    with np.errstate(over="ignore", invalid="ignore"):
        arrays = [array.astype(np.float32, copy=False) for array in arrays]
        norm = norm_of(arrays)
    is_finite = math.isfinite(norm)
    is_huge = is_finite and zeroing_norm is not None and norm > zeroing_norm
    if not is_finite or is_huge:
        return Bounded(arrays, 0.0, False, is_finite, is_huge, False)
    if norm <= l2_norm_clip:
        return Bounded(arrays, 1.0, True, True, False, False)
    size = sum(array.size for array in arrays)
    room = l2_norm_clip * _ROOM - _TINY * math.sqrt(size)
    factor = max(room, 0.0) / norm  # may be below what float32 has
    return Bounded(arrays, factor, True, True, False, True)


def scaled(array: np.ndarray, factor: float) -> np.ndarray:
    """A part of an update times the factor of its `Bounded`, float32."""
    if factor == 1.0:
        return array
    if factor == 0.0:  # of NaN, too
        return np.zeros_like(array)
    return (array.astype(np.float64) * factor).astype(np.float32)


def clip_update(
    update: Sequence[np.ndarray],
    l2_norm_clip: float,
    zeroing_norm: float | None = None,
) -> Clipped:
    """`update * min(1, l2_norm_clip / norm)`, with a norm that is never underestimated.

    The norm is summed in float64, in which no float32 over- or underflows. An update
    with a value that is not finite is zeros, and so is one above `zeroing_norm`.

    Args:
      update: arrays of floats, which are taken as float32.
      l2_norm_clip: zeta.
      zeroing_norm: or None.

    Raises:
      TypeError: if an array does not hold real floats.
    """
    arrays, factor, *flags = bound_update(update, l2_norm_clip, zeroing_norm)
    return Clipped([scaled(array, factor) for array in arrays], *flags)


def norm_of(arrays: Sequence[np.ndarray]) -> float:
    """The l2 norm over all arrays, in float64; NaN or infinity if a value is."""
    total = 0.0
    for array in arrays:
        flat = np.ravel(array)
        for start in range(0, flat.size, BLOCK):
            part = flat[start : start + BLOCK].astype(np.float64)
            # No BLAS, whose threads cost more than such a block.
            total += float(np.square(part, out=part).sum())
    return math.sqrt(total) if math.isfinite(total) else math.nan
