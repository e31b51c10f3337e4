"""Root finding whose results lie on the safe side."""

from __future__ import annotations

import math
from typing import Callable

import scipy.optimize

# Steps to the safe side after root finding, relative.
_NUDGE = 1e-10
_TOLERANCE = 1e-5
# The factor by which a search for a safe value goes on.
_WIDER = 1.05
_MOST_NEWTON_STEPS = 5
_LEAST_LOG_NOISE = -30.0
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
        step *= 2.0
        if step > 1e-3:
            raise ArithmeticError("Calibration did not find a safe value.")
    return value


def least_safe(
    is_safe: Callable[[float], bool], start: float, largest: float, tolerance: float
) -> float:
    """The least value >= start that is safe, up to a relative tolerance, itself checked.

    Args:
      is_safe: False below some value, True above; may be slow.
      start: > 0, near the value.
      largest: beyond it nothing is looked for.
      tolerance: relative.

    Raises:
      ArithmeticError: if no value up to the largest is safe.
    """
    lower = upper = start
    while not is_safe(upper):
        lower, upper = upper, upper * _WIDER
        if upper > largest:
            raise ArithmeticError("Calibration did not find a safe value.")
    while upper > lower * (1.0 + tolerance):
        middle = math.sqrt(lower * upper)
        if is_safe(middle):
            upper = middle
        else:
            lower = middle
    return upper


def log(x: float) -> float:
    """The logarithm, finite for 0: far below any delta of interest."""
    return math.log(max(x, 1e-300))


def near_root(
    excess: Callable[[float], float], start: float, largest: float, tolerance: float
) -> float:
    """Where a falling function of the log noise is 0, by secants: few values near a root.

    Args:
      excess: log of delta over the one that is wanted, smooth and falling.
      start: where to begin.
      largest: returned where the function is not below 0 before.
      tolerance: length of the last step.

    Raises:
      ArithmeticError: if no root was found.
    """
    x, slope = min(start, largest), _FIRST_SLOPE
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

    def excess(function: Callable[[float], float], log_noise: float) -> float:
        return log(function(math.exp(log_noise))) - log(delta)

    upper = math.log(largest)
    lower = upper
    while True:
        lower -= 0.7
        if excess(rough, lower) > 0.0:
            break
        upper = lower
        if lower < _LEAST_LOG_NOISE:
            raise ArithmeticError("Calibration found no lower limit of the noise.")
    if excess(rough, upper) >= 0.0:
        return largest
    start = scipy.optimize.brentq(lambda x: excess(rough, x), lower, upper, xtol=1e-4)
    width = 2e-3
    # `fine` costs seconds: by the slope of `rough` two or three values are enough.
    slope = excess(rough, start + width) - excess(rough, start - width)
    slope /= 2.0 * width
    found = start
    for _ in range(_MOST_NEWTON_STEPS):
        if not slope < 0.0:
            break
        step = -excess(fine, found) / slope
        found += step
        if not abs(step) <= 10.0 * width:
            break
        if abs(step) <= 0.5 * _TOLERANCE:
            return min(_nudged(found, fine, delta), largest)
    lower, upper = start - width, start + width
    while excess(fine, lower) <= 0.0:
        lower -= width
    while excess(fine, upper) > 0.0:
        upper += width
        if upper >= math.log(largest):
            return largest
    found = scipy.optimize.brentq(
        lambda x: excess(fine, x), lower, upper, xtol=_TOLERANCE
    )
    return min(_nudged(found, fine, delta), largest)


def _nudged(log_noise: float, fine: Callable[[float], float], delta: float) -> float:
    """A safe noise, of the logarithm of one that is so up to the tolerance."""
    return to_safe_side(
        math.exp(log_noise + _TOLERANCE), lambda noise: fine(noise) <= delta
    )
