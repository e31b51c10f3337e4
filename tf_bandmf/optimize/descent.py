"""L-BFGS in NumPy, for objectives that are infinite outside an unknown region.

If an evaluation of the objective takes only a millisecond, tracing TensorFlow
Probability's optimizer takes longer than the optimization itself. SciPy's line search
gives up at the first infinite value. In contrast, the line search of this module
bisects its step at infinite values, and ends at a point that satisfies the weak Wolfe
conditions (Lewis and Overton, "Nonsmooth optimization via quasi-Newton methods", 2013,
Algorithm 2.6).
"""

from __future__ import annotations

import math
import time
from collections import deque
from typing import Callable

import numpy as np

from tf_bandmf.optimize.options import SEGMENT, Options
from tf_bandmf.optimize.result import OptimizationResult

_PAIRS = 30
_ARMIJO, _WOLFE = 1e-4, 0.9
_MOST_TRIALS = 60
# If an iteration is expected to decrease the value by less than this, relative to
# max(1, |value|), rounding errors dominate.
_ROUNDING = 1e-14

Function = Callable[[np.ndarray], "tuple[float, np.ndarray]"]


def minimize(
    function: Function,
    start: np.ndarray,
    options: Options,
    first_step: float = math.inf,
) -> OptimizationResult:
    """Minimizes a smooth function, starting from a point where it is finite.

    Args:
      function: function that returns its value and gradient at a position, shape [m]. The
        value is infinite at positions where the function is undefined.
      start: initial position, shape [m].
      options: stopping rules. `decrease_tolerance` applies to the absolute decrease in
        20 iterations.
      first_step: maximum change of any variable in the first trial step.
    """
    began = time.perf_counter()
    x = np.array(start, np.float64)
    value, gradient = function(x)
    pairs: deque[tuple[np.ndarray, np.ndarray]] = deque(maxlen=_PAIRS)
    iterations = 0
    past = deque([value], maxlen=SEGMENT + 1)
    while True:
        norm = float(np.max(np.abs(gradient), initial=0.0))
        # `value` is the objective's logarithm, so its decrease is the objective's
        # relative decrease.
        decrease = past[0] - value if len(past) > SEGMENT else math.inf
        end = options.judge_progress(norm, decrease, iterations)
        if end is not None:
            break
        direction = -_product(pairs, gradient)
        if -(gradient @ direction) <= _ROUNDING * max(1.0, abs(value)) and pairs:
            end = True, "no decrease that float64 resolves"
            break
        step = 1.0 if pairs else min(1.0, first_step / norm)
        point = _line_search(function, x, value, gradient, direction, step)
        if point is None:
            if pairs:
                # Retry at this position without the correction pairs of earlier steps.
                pairs.clear()
                continue
            end = False, "line search failed: no further decrease"
            break
        position, new_value, new_gradient = point
        difference, change = position - x, new_gradient - gradient
        if difference @ change > 1e-12 * (change @ change):
            pairs.append((difference, change))
        x, value, gradient = position, new_value, new_gradient
        past.append(value)
        iterations += 1
    seconds = time.perf_counter() - began
    return OptimizationResult(x, *end, value, norm, iterations, seconds)


def _product(
    pairs: deque[tuple[np.ndarray, np.ndarray]], gradient: np.ndarray
) -> np.ndarray:
    """Returns the inverse Hessian estimate times the gradient (two-loop recursion)."""
    result = gradient.copy()
    factors = []
    for step, change in reversed(pairs):
        factor = (step @ result) / (step @ change)
        factors.append(factor)
        result -= factor * change
    if pairs:
        step, change = pairs[-1]
        result *= (step @ change) / (change @ change)
    for (step, change), factor in zip(pairs, reversed(factors)):
        result += (factor - (change @ result) / (step @ change)) * step
    return result


def _line_search(
    function: Function,
    x: np.ndarray,
    value: float,
    gradient: np.ndarray,
    direction: np.ndarray,
    step: float,
) -> tuple[np.ndarray, float, np.ndarray] | None:
    """Searches along a direction for a point with a lower value.

    Returns:
      The point, its value and its gradient; None if no point had a lower value.
    """
    slope = float(gradient @ direction)
    if not slope < 0.0:
        return None
    low, high = 0.0, math.inf
    best: tuple[np.ndarray, float, np.ndarray] | None = None
    for _ in range(_MOST_TRIALS):
        position = x + step * direction
        reached, derivative = function(position)
        if not reached <= value + _ARMIJO * step * slope:
            high = step
        else:
            if best is None or reached < best[1]:
                best = position, reached, derivative
            if derivative @ direction >= _WOLFE * slope:
                return position, reached, derivative
            low = step
        step = 0.5 * (low + high) if math.isfinite(high) else 2.0 * low
        if high - low < 1e-14 * max(high, 1e-300):
            break
    return best
