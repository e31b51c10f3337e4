"""A search for the best value of a parameter in [0, 1), with finer steps close to 1."""

from __future__ import annotations

import dataclasses
import math
from typing import Callable

import numpy as np

from tf_bandmf.accounting.checks import check_word
from tf_bandmf.participation import Participation
from tf_bandmf.strategies.base import Strategy
from tf_bandmf.workloads import Workload

_POINTS = 25
# The search for the best value x of the parameter determines log(1 - x) with the
# tolerance _TOLERANCE. For more than LONG_RUN steps, evaluating one strategy takes
# tenths of a second. Then the search uses a larger tolerance, and "auto" first compares
# drafts, that is, strategies that are optimized only roughly. This hardly increases the
# error, which is near its minimum.
_TOLERANCE, LONG_RUN = 1e-7, 2**16


def with_best_fraction(
    build: Callable[[float], Strategy],
    workload: Workload,
    participation: Participation,
    objective: str,
) -> Strategy:
    """Returns the strategy for the parameter value that gives the smallest error.

    The error is computed without amplification by sampling. The parameter is a fraction
    in [0, 1). Because `1 - fraction` spans orders of magnitude, the search is over its
    logarithm: first on a grid of `1 - fraction` from `0.1 / num_steps` to 1, and then
    between the neighbors of the best grid point.

    Args:
      build: function that returns the strategy for a fraction.
      workload: the workload.
      participation: the participation, which determines the sensitivity.
      objective: "mean" for the RMSE, "max" for the MaxSE.

    Returns:
      The strategy for the best fraction, with diagnostics of the search.

    Raises:
      ValueError: for an unknown objective.
    """
    # SciPy is imported here because the import is slow.
    import scipy.optimize

    check_word("objective", objective, ("mean", "max"))
    measure = Strategy.rmse if objective == "mean" else Strategy.max_se

    def at(log_rest: float) -> float:
        # The entries of C may grow exponentially and overflow.
        with np.errstate(all="ignore"):
            strategy = build(-np.expm1(log_rest))
            try:
                value = measure(strategy, workload, participation)
            except ValueError:
                return math.inf
        return float(np.log(value)) if 0.0 < value < math.inf else math.inf

    grid = np.log(np.geomspace(1e-1 / workload.num_steps, 1.0, _POINTS))
    values = [at(x) for x in grid]
    best = int(np.argmin(values))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    tolerance = _TOLERANCE * max(1.0, workload.num_steps / LONG_RUN) ** 4
    result = scipy.optimize.minimize_scalar(
        at, bounds=(low, high), method="bounded", options={"xatol": tolerance}
    )
    log_rest = result.x if result.fun < values[best] else grid[best]
    diagnostics = {"objective": objective, "converged": bool(result.success)}
    strategy = build(float(-np.expm1(log_rest)))
    return dataclasses.replace(strategy, diagnostics=diagnostics)
