"""Clips updates in NumPy, on the device and again on the server."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tf_bandmf_federated.large_vectors import blocks, in_chunks

# Clipping scales updates to slightly less than the clip norm. The margin, 1 - ROOM,
# exceeds both the relative error of products rounded to float32 and the relative error
# of `_quick_norm`. Therefore the server does not scale down an update that a device has
# already clipped.
ROOM = 1.0 - 2.0**-17
# Upper bound on the absolute error of a subnormal product rounded to float32.
_TINY = float(np.finfo(np.float32).smallest_subnormal)
# Upper bound on the relative error of the norm that `norm_of` computes.
_NORM_ERROR = 2.0**-36
# Upper bound on the relative error of the norm that `_quick_norm` computes.
_QUICK_ERROR = 2.0**-18
# Number of squares that `_quick_squares` sums in float32 at a time.
_ROW = 64
# If the mean of the squares is below this value, squares may have underflowed in
# float32.
_SMALLEST_MEAN = 2.0**-100
# The length of dot products. It is so small that BLAS does not start threads.
_DOT = 1 << 13


class Bounded(NamedTuple):
    """An update, and its clipping factor.

    Attributes:
      update: float32 arrays.
      factor: number in [0, 1] by which the update must be multiplied before it is added
        to a sum. A factor of 0.0 replaces all values, even NaN, with zero.
      is_finite: True if all values and the norm are finite. If False, the update adds
        nothing to the sum.
      was_clipped: True if the norm exceeded the clip norm.
    """

    update: list[np.ndarray]
    factor: float
    is_finite: bool
    was_clipped: bool


def bound_update(update: Sequence[np.ndarray], l2_norm_clip: float) -> Bounded:
    """Returns the update with its clipping factor, which is not applied yet.

    Args:
      update: arrays of floats, which are converted to float32.
      l2_norm_clip: zeta, the clip norm.

    Raises:
      TypeError: if an array does not contain real floats.
    """
    arrays = [np.asarray(array) for array in update]
    for array in arrays:
        if array.dtype.kind != "f":
            raise TypeError(f"An update must have float arrays, found {array.dtype}.")
    with np.errstate(over="ignore", invalid="ignore"):
        arrays = [array.astype(np.float32, copy=False) for array in arrays]
        norm = _quick_norm(arrays)
        if not (norm <= l2_norm_clip or norm > l2_norm_clip * (1.0 + 2.0**-16)):
            # The quick result is NaN, or is too close to the clip norm to show whether
            # the update must be clipped.
            norm = norm_of(arrays)
    if not math.isfinite(norm):
        return Bounded(arrays, 0.0, False, False)
    if norm <= l2_norm_clip:
        return Bounded(arrays, 1.0, True, False)
    size = sum(array.size for array in arrays)
    room = l2_norm_clip * ROOM - _TINY * math.sqrt(size)
    # The factor stays a float64 number, because it may underflow in float32.
    factor = max(room, 0.0) / norm
    return Bounded(arrays, factor, True, True)


def clip_update(update: Sequence[np.ndarray], l2_norm_clip: float) -> Bounded:
    """Multiplies an update by `min(1, l2_norm_clip / norm)`, with the norm rounded up.

    If a value is not finite, the whole update is replaced by zeros.

    Args:
      update: arrays of floats, which are converted to float32.
      l2_norm_clip: zeta, the clip norm.

    Returns:
      The clipped update. Its `factor` is 1, because the clipping factor has already
      been applied.

    Raises:
      TypeError: if an array does not contain real floats.
    """
    bounded = bound_update(update, l2_norm_clip)
    scaled = [_scaled(array, bounded.factor) for array in bounded.update]
    return bounded._replace(update=scaled, factor=1.0)


def norm_of(arrays: Sequence[np.ndarray]) -> float:
    """Returns the l2 norm over all arrays, rounded up; NaN if a value is not finite.

    Squares are added up in float64, where squares of float32 numbers neither overflow
    nor underflow. The sum over a block of b numbers has a relative error below b 2^-53,
    and the sum of all m block sums has a relative error below m 2^-53 (Higham, "The
    accuracy of floating point summation", SIAM J. Sci. Comput. 14, 1993, eq. 2.6). For
    up to 10^9 numbers, the factor that rounds the norm up exceeds both errors.
    """
    total = math.fsum(in_chunks(_squares, arrays))
    return math.sqrt(total) * (1.0 + _NORM_ERROR) if math.isfinite(total) else math.nan


def _quick_norm(arrays: Sequence[np.ndarray]) -> float:
    """Returns the norm, less accurately than `norm_of` but five times as fast, or NaN.

    Squares are added up in float32, in rows of 64 numbers, with a relative error below
    64 * 2^-24 = 2^-18 (Higham, cited in `norm_of`). The norm is the square root of the
    sum, so its relative error is below 2^-19. The result is NaN if squares that
    overflow or underflow could make the error larger than this.
    """
    total = math.fsum(in_chunks(_quick_squares, arrays))
    size = sum(array.size for array in arrays)
    if not (math.isfinite(total) and total >= size * _SMALLEST_MEAN):
        return math.nan
    return math.sqrt(total) * (1.0 + _QUICK_ERROR)


def _quick_squares(part: np.ndarray) -> float:
    """Returns the sum of the squares of a vector, computed in float32."""
    if part.size < _ROW:
        return _squares(part)
    whole = part.size - part.size % _ROW
    rows = part[:whole].reshape(-1, _ROW)
    sums = np.einsum("ij,ij->i", rows, rows)
    return float(np.sum(sums, dtype=np.float64)) + _squares(part[whole:])


def _squares(part: np.ndarray) -> float:
    """Returns the sum of the squares of a vector, computed in float64."""
    doubles, total = np.empty(_DOT), 0.0
    for block in blocks(0, part.size, _DOT):
        some = doubles[: block.stop - block.start]
        np.copyto(some, part[block])
        total += float(np.dot(some, some))
    return total


def _scaled(array: np.ndarray, factor: float) -> np.ndarray:
    """Returns the product of an array and a factor, as float32."""
    if factor == 1.0:
        return array
    if factor == 0.0:
        # The array may contain NaN, which a product with 0 would keep.
        return np.zeros_like(array)
    return (array.astype(np.float64) * factor).astype(np.float32)
