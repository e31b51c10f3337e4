"""Root finding for noise and epsilon, with results that are rounded up to be safe."""

from __future__ import annotations

import math
from typing import Callable

# After root finding, the result is increased until it is safe, at first by this
# fraction.
_NUDGE = 1e-10
_TOLERANCE = 1e-5
# The tolerance of a rough root, and the step of the difference quotient that estimates
# the slope.
_ROUGH_TOLERANCE, _WIDTH = 1e-3, 1e-3
# Settings of the secant method for log delta as a function of log noise. _FIRST_SLOPE
# is the initial slope, and estimated slopes are at most _LEAST_SLOPE. _LONGEST_STEP
# limits a step; where delta is rounded to 0 (an excess below _ROUNDED_TO_ZERO), the
# limit is _LONGEST_FROM_ZERO. A value farther than _FAR from 0 is not used to estimate
# the slope near 0.
_FIRST_SLOPE, _LEAST_SLOPE = -12.0, -1.0
_LONGEST_STEP, _LONGEST_FROM_ZERO, _ROUNDED_TO_ZERO = 0.5, 1.0, -300.0
_FAR, _MOST_SECANTS = 30.0, 100


def to_safe_side(value: float, is_safe: Callable[[float], bool]) -> float:
    """Returns the value after increasing it by small amounts until it is safe.

    Raises:
      ArithmeticError: if the value is not safe after an increase by about 0.1%.
    """
    step = _NUDGE
    while not is_safe(value):
        value *= 1.0 + step
        step *= 8.0
        if step > 8e-3:
            raise ArithmeticError(f"Calibration: no value near {value:g} is safe.")
    return value


def log(x: float) -> float:
    """Returns the logarithm of x; for x = 0, a finite value below any log delta."""
    return math.log(max(x, 1e-300))


def near_root(
    excess: Callable[[float], float],
    start: float,
    largest: float,
    tolerance: float,
    slope: float = _FIRST_SLOPE,
) -> float:
    """Returns the root of a decreasing function of log noise (secant method).

    The function is evaluated only a few times, most of them near the root.

    Args:
      excess: returns log delta minus the log of the target delta; smooth and
        decreasing.
      start: value at which the search starts.
      largest: the upper limit of the search; returned if `excess` is >= 0 there.
      tolerance: the search ends after a step of at most this length.
      slope: slope of `excess` that is assumed for the first step.

    Raises:
      ArithmeticError: if no root was found.
    """
    x = min(start, largest)
    before: tuple[float, float] | None = None
    for _ in range(_MOST_SECANTS):
        value = excess(x)
        if value >= 0.0 and x >= largest:
            return largest
        if before is not None and abs(before[1]) < _FAR:
            slope = min((value - before[1]) / (x - before[0]), _LEAST_SLOPE)
        longest = _LONGEST_FROM_ZERO if value < _ROUNDED_TO_ZERO else _LONGEST_STEP
        move = min(max(-value / slope, -longest), longest)
        before, x = (x, value), min(x + move, largest)
        if abs(move) <= tolerance:
            return x
    raise ArithmeticError("The noise has no lower limit: calibration failed.")


def smallest(
    rough: Callable[[float], float],
    fine: Callable[[float], float],
    delta: float,
    start: float,
    largest: float,
) -> float:
    """Returns the smallest noise (or epsilon) x with `fine(x) <= delta`, rounded up.

    The relative tolerance is about 1e-5.

    Args:
      rough: a cheap approximation of `fine`.
      fine: returns an upper bound on delta at x; decreasing in x, and slow to compute.
      delta: in (0, 1).
      start: value (> 0) at which the search starts.
      largest: a value of x with `fine(x) <= delta`.

    Raises:
      ArithmeticError: if no safe value was found.
    """

    def excess(function: Callable[[float], float], at: float) -> float:
        return log(function(math.exp(at))) - log(delta)

    most = math.log(largest)
    near = near_root(
        lambda x: excess(rough, x), math.log(start), most, _ROUGH_TOLERANCE
    )
    slope = (excess(rough, near) - excess(rough, near - _WIDTH)) / _WIDTH
    slope = min(slope, _LEAST_SLOPE)
    root = near_root(lambda x: excess(fine, x), near, most, _TOLERANCE, slope)
    if root >= most:
        return largest
    value = math.exp(root + _TOLERANCE)
    return min(to_safe_side(value, lambda value: fine(value) <= delta), largest)
