"""Root finding whose results lie on the safe side."""

from __future__ import annotations

import math
from typing import Callable

# Steps to the safe side after root finding, relative.
_NUDGE = 1e-10
_TOLERANCE = 1e-5
# A rough root, and the width of the difference that is its slope.
_ROUGH_TOLERANCE, _WIDTH = 1e-3, 1e-3
# Secants: the slope of log delta in log noise that they begin with, and the flattest; the
# longest step; and where delta is 0 by rounding, for what is farther from 0 says nothing
# about the slope near it.
_FIRST_SLOPE, _LEAST_SLOPE = -12.0, -1.0
_LONGEST_STEP, _LONGEST_FROM_ZERO, _ROUNDED_TO_ZERO = 0.5, 1.0, -300.0
_FAR, _MOST_SECANTS = 30.0, 100


def to_safe_side(value: float, is_safe: Callable[[float], bool]) -> float:
    """The value, increased by as little as makes it safe.

    Raises:
      ArithmeticError: if a thousandth does not suffice.
    """
    step = _NUDGE
    while not is_safe(value):
        value *= 1.0 + step
        step *= 8.0
        if step > 8e-3:
            raise ArithmeticError("Calibration did not find a safe value.")
    return value


def log(x: float) -> float:
    """The logarithm, finite for 0: far below any delta of interest."""
    return math.log(max(x, 1e-300))


def near_root(
    excess: Callable[[float], float],
    start: float,
    largest: float,
    tolerance: float,
    slope: float = _FIRST_SLOPE,
) -> float:
    """The root of a falling function of the log noise, by secants: few values near it.

    Args:
      excess: log of delta over the one that is wanted, smooth and falling.
      start: where to begin.
      largest: returned where the function is not below 0 before.
      tolerance: length of the last step.
      slope: of the first step.

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
    raise ArithmeticError("Calibration found no lower limit of the noise.")


def smallest(
    rough: Callable[[float], float],
    fine: Callable[[float], float],
    delta: float,
    start: float,
    largest: float,
) -> float:
    """The smallest noise, or epsilon, with `fine(it) <= delta`, up to 1e-5, rounded up.

    Args:
      rough: a cheap approximation of `fine`.
      fine: delta, from above; slow, and falling.
      delta: in (0, 1).
      start: > 0, where to begin.
      largest: what is known to be enough.

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
