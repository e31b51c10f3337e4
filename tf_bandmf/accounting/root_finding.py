"""Root finding for noise and epsilon, rounded up so that they meet a target delta."""

from __future__ import annotations

import math
from typing import Callable

# The fraction by which `to_safe_side` increases a value in its first attempt.
_NUDGE = 1e-10
_TOLERANCE = 1e-5
# `smallest` first finds a rough root. _ROUGH_TOLERANCE is the tolerance of this root. A
# difference quotient with the step _WIDTH estimates the slope at this root.
_ROUGH_TOLERANCE, _WIDTH = 1e-3, 1e-3
# Settings of `near_root`, which applies the secant method to `excess`, the log of delta
# minus the log of the target delta, as a function of log noise.
# _FIRST_SLOPE: the slope for the first step.
# _LEAST_SLOPE: slopes are negative; estimated slopes above this value are set to it.
# _LONGEST_STEP: the maximum length of a step.
# _LONGEST_FROM_ZERO: the maximum length of a step if the excess is below
# _ROUNDED_TO_ZERO, because delta is then rounded to 0.
# _FAR: an excess with a larger absolute value is not used to estimate a slope.
# _MOST_SECANTS: the maximum number of steps.
_FIRST_SLOPE, _LEAST_SLOPE = -12.0, -1.0
_LONGEST_STEP, _LONGEST_FROM_ZERO, _ROUNDED_TO_ZERO = 0.5, 1.0, -300.0
_FAR, _MOST_SECANTS = 30.0, 100


def to_safe_side(value: float, is_safe: Callable[[float], bool]) -> float:
    """Increases a noise or epsilon in small steps until `is_safe` returns True for it.

    Args:
      value: result of root finding, > 0.
      is_safe: returns True if a value meets the target delta.

    Returns:
      The smallest of the tried values that is safe.

    Raises:
      ArithmeticError: if the value is not safe after an increase by about 0.1%.
    """
    step = _NUDGE
    while not is_safe(value):
        value *= 1.0 + step
        step *= 8.0
        if step > 8e-3:
            raise ArithmeticError(f"No noise or epsilon near {value:g} meets delta.")
    return value


def log(x: float) -> float:
    """Returns `log(max(x, 1e-300))`, which is finite even for x = 0."""
    return math.log(max(x, 1e-300))


def near_root(
    excess: Callable[[float], float],
    start: float,
    largest: float,
    tolerance: float,
    slope: float = _FIRST_SLOPE,
) -> float:
    """Returns the root of a decreasing function of log noise, by the secant method.

    The secant method needs only a few evaluations, most of them near the root.

    Args:
      excess: returns log delta minus the log of the target delta, for a log noise (or
        log epsilon); smooth and decreasing.
      start: the log noise at which the search starts.
      largest: the maximum log noise; it is the result if `excess(largest) >= 0`.
      tolerance: the search ends after a step of at most this length.
      slope: the slope of `excess` that is assumed for the first step.

    Raises:
      ArithmeticError: if the search does not end within 100 steps.
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
    raise ArithmeticError(
        "Noise (or epsilon) near 0 already meets the target delta. Use a smaller delta."
    )


def smallest(
    rough: Callable[[float], float],
    fine: Callable[[float], float],
    delta: float,
    start: float,
    largest: float,
) -> float:
    """Returns the smallest noise (or epsilon) x with `fine(x) <= delta`, rounded up.

    The result exceeds the exact root by a fraction of about 1e-5.

    Args:
      rough: a cheap approximation of `fine`.
      fine: returns an upper bound on delta at x. It decreases as x increases, and may
        be slow to compute.
      delta: in (0, 1).
      start: value (> 0) at which the search starts.
      largest: a value of x with `fine(x) <= delta`.

    Raises:
      ArithmeticError: if the search fails.
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
