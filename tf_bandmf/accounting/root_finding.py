"""Root finding whose results lie on the safe side."""

from __future__ import annotations

import math
from typing import Callable

# Steps to the safe side after root finding, relative.
_NUDGE = 1e-10
_TOLERANCE = 1e-5
# A rough root, the width of the difference that is its slope, and how far below the largest
# noise the search begins.
_ROUGH_TOLERANCE, _WIDTH, _START = 1e-3, 1e-3, 0.7
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
    """Where a falling function of the log noise is 0, by secants: few values near a root.

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


def near_root_of(
    rough: Callable[[float], float],
    fine: Callable[[float], float],
    start: float,
    largest: float,
) -> float:
    """`near_root` of `fine`, up to 1e-5, by few values: from the root of `rough`.

    Args:
      rough: a cheap approximation of `fine`.
      fine: slow.
      start: where to begin.
      largest: as for `near_root`.
    """
    found = near_root(rough, start, largest, _ROUGH_TOLERANCE)
    below = found - _WIDTH
    slope = min((rough(found) - rough(below)) / _WIDTH, _LEAST_SLOPE)
    return near_root(fine, found, largest, _TOLERANCE, slope)


def smallest_noise(
    rough: Callable[[float], float],
    fine: Callable[[float], float],
    delta: float,
    largest: float,
) -> float:
    """The smallest noise with `fine(noise) <= delta`, up to 1e-5, rounded up.

    Args:
      rough: a cheap approximation of `fine`.
      fine: delta for a noise; falling.
      delta: in (0, 1).
      largest: noise that is known to be safe.

    Raises:
      ArithmeticError: if no safe value was found.
    """

    def excess(function: Callable[[float], float]) -> Callable[[float], float]:
        return lambda log_noise: log(function(math.exp(log_noise))) - log(delta)

    most = math.log(largest)
    found = near_root_of(excess(rough), excess(fine), most - _START, most)
    if found >= most:
        return largest
    noise = math.exp(found + _TOLERANCE)
    return min(to_safe_side(noise, lambda noise: fine(noise) <= delta), largest)
