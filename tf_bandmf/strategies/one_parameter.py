"""Choosing the one parameter of a family: fractions close to 1 matter most."""

from __future__ import annotations

from typing import Callable

import numpy as np

_POINTS = 25
_TOLERANCE = 1e-7


def best_fraction(
    log_error: Callable[[float], float], num_steps: int
) -> tuple[float, bool]:
    """The fraction in [0, 1) with the smallest error, and whether the search converged.

    `1 - fraction` spans orders of magnitude: its logarithm is searched, on a grid down to
    `0.1 / num_steps` and then between the neighbors of the best point.

    Args:
      log_error: the logarithm of the error at a fraction; infinite where there is none.
      num_steps: n.
    """
    import scipy.optimize  # slow to import

    def at(log_rest: float) -> float:
        return log_error(-np.expm1(log_rest))

    grid = np.log(np.geomspace(1e-1 / num_steps, 1.0, _POINTS))
    values = [at(x) for x in grid]
    best = int(np.argmin(values))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    result = scipy.optimize.minimize_scalar(
        at, bounds=(low, high), method="bounded", options={"xatol": _TOLERANCE}
    )
    log_rest = result.x if result.fun < values[best] else grid[best]
    return float(-np.expm1(log_rest)), bool(result.success)
