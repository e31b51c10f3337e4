"""The search for one parameter of a mechanism, where each value costs a simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Callable

# The most values between those of a grid that are tried.
MOST_REFINED = 8
_TOLERANCE = 0.05
# A further value is tried only if it is expected to lower the log of the error by this.
_GAIN = 5e-4


def _lowest(function: Callable[[float], float], grid: Sequence[float], at: int) -> int:
    """The index of a local minimum on the grid, found downhill from index `at`."""
    while True:
        here = function(grid[at])
        beside = [i for i in (at - 1, at + 1) if 0 <= i < len(grid)]
        if math.isinf(here):
            # The function is infinite if lambda or gamma is too large, but never at 0.
            beside = [i for i in beside if i < at]
        next_at = min(beside, key=lambda i: function(grid[i]), default=at)
        if not (math.isinf(here) and beside) and function(grid[next_at]) >= here:
            return at
        at = next_at


def search(function: Callable[[float], float], grid: Sequence[float], at: int) -> None:
    """Evaluates a function near its minimum: on a grid, then around the best value there.

    Args:
      function: smooth, with one minimum; it may be infinite at the end of the grid. It is
        called more than once for a value, so it should keep its results.
      grid: falling values at which it is evaluated first, from `at` downhill.
      at: index to begin with.
    """
    best = _lowest(function, grid, at)
    points = {grid[i] for i in (best - 1, best, best + 1) if 0 <= i < len(grid)}
    for _ in range(MOST_REFINED):
        x = min(points, key=function)
        left = max((point for point in points if point < x), default=None)
        right = min((point for point in points if point > x), default=None)
        point = _between(function, left, x, right)
        if point is None:
            return
        points.add(point)


def _between(
    function: Callable[[float], float],
    left: float | None,
    x: float,
    right: float | None,
) -> float | None:
    """The next point to try around x, the best of three; None if x is good enough.

    It is the vertex of a parabola; beside an infinite value, or at an end of the grid, it
    is half way to the other neighbor.
    """
    if left is None or right is None:
        other = right if left is None else left
        assert other is not None
        return None if abs(other - x) < 2.0 * _TOLERANCE else 0.5 * (x + other)
    below, above = function(left) - function(x), function(right) - function(x)
    if math.isinf(below) or math.isinf(above):
        other = left if math.isinf(below) else right
        return None if abs(other - x) < _TOLERANCE else 0.5 * (x + other)
    # function(x + t) - function(x) = slope t + curvature t^2
    a, b = left - x, right - x
    curvature = (above / b - below / a) / (b - a)
    slope = below / a - curvature * a
    if not curvature > 0.0:
        return None
    if slope**2 < 4.0 * _GAIN * curvature:
        return None
    vertex = x - 0.5 * slope / curvature
    return None if vertex in (left, x, right) else vertex
