"""Optimal Toeplitz strategies for Toeplitz workloads, in NumPy alone.

The problem of `optimize.toeplitz` where `A C^-1` is Toeplitz and the objective is the mean
or the last per-step error: value and gradient are a few recurrences of `n` terms, O(n p)
an evaluation, without tracing. `optimize.toeplitz` does all else.
"""

from __future__ import annotations

import math
import time

import numpy as np

from tf_bandmf.optimize import descent
from tf_bandmf.optimize.result import OptimizationResult
from tf_bandmf.workloads import Workload

# Named objectives, and what they are for errors that grow from step to step.
_OBJECTIVES = {"mean": "mean", "last": "last", "max": "last"}
# From the square root, longer first steps leave the region of stable inverses.
_FIRST_STEP = 0.05
# Decrease of the log squared error in 20 iterations.
_LEAST_DECREASE = 1e-12
# The same with a penalty, whose kinks make the last digits slow.
_PENALIZED_DECREASE = 1e-6
# What the first column shall fall by at each step: then it falls after rounding, too.
_MARGIN = 1e-5


def named_objective(workload: Workload, objective: object) -> str | None:
    """The name "mean" or "last"; None where `optimize.toeplitz` is needed."""
    if not workload.is_toeplitz or not isinstance(objective, str):
        return None
    return _OBJECTIVES.get(objective)


class SeriesProblem:
    """log(squared error) + log(squared norm of the columns 0, b, 2b, ...), and gradient.

    Variables are the coefficients after the leading 1.

    Args:
      workload: A, Toeplitz.
      objective: "mean" or "last".
      separation: b.
      participations: k.
      inverse: whether the coefficients are those of `C^-1` and not those of `C`.
    """

    def __init__(
        self,
        workload: Workload,
        objective: str,
        separation: int,
        participations: int,
        inverse: bool,
    ) -> None:
        n = workload.num_steps
        self.inverse = inverse
        self._factor = workload.inverse_coefficients
        self._column = workload.first_column()
        # Term t of the first column of B is in n - t rows.
        is_mean = objective == "mean"
        self._weights = (n - np.arange(n)) / n if is_mean else np.ones(n)
        self._pattern = np.zeros(n)
        self._pattern[::separation][:participations] = 1.0

    def value_and_gradient(
        self, position: np.ndarray, penalty: float = 0.0
    ) -> tuple[float, np.ndarray]:
        """At the coefficients [p - 1]; infinite where the recurrences overflow."""
        c = np.concatenate([[1.0], position])
        with np.errstate(all="ignore"):
            error, by_error = self._error(c)
            squared, by_squared = self._squared_norm(c)
            value = np.log(error) + np.log(squared)
            gradient = by_error / error + by_squared / squared
            if penalty and self.inverse:
                more, by_more = self._increase(c)
                value += penalty * more
                gradient = gradient + penalty * by_more
        if not (np.isfinite(value) and np.all(np.isfinite(gradient))):
            return np.inf, np.zeros(position.size)
        return float(value), gradient[1:]

    def _error(self, c: np.ndarray) -> tuple[float, np.ndarray]:
        from scipy.signal import lfilter  # slow to import

        n, p = self._weights.size, c.size
        if self.inverse:
            response, derivative = lfilter(c, [1.0], self._column), self._column
            sign = 2.0
        else:
            product = np.convolve(c, self._factor)[:n]
            first = np.zeros(n)
            first[0] = 1.0
            response = lfilter([1.0], product, first)
            derivative, sign = lfilter(self._factor, product, response), -2.0
        weighted = self._weights * response
        return float(weighted @ response), sign * _correlate(weighted, derivative, p)

    def _squared_norm(self, c: np.ndarray) -> tuple[float, np.ndarray]:
        from scipy.signal import lfilter

        pattern = self._pattern
        if self.inverse:
            joint = lfilter([1.0], c, pattern)
            derivative, sign = lfilter([1.0], c, joint), -2.0
        else:
            joint, derivative, sign = lfilter(c, [1.0], pattern), pattern, 2.0
        return float(joint @ joint), sign * _correlate(joint, derivative, c.size)

    def _increase(self, c: np.ndarray) -> tuple[float, np.ndarray]:
        """Squares of the increases of the first column of `C`, and of what is below 0."""
        from scipy.signal import lfilter

        first = np.zeros(self._weights.size)
        first[0] = 1.0
        column = lfilter([1.0], c, first)
        kept = 1.0 - _MARGIN
        rise = np.maximum(column[1:] - kept * column[:-1], 0.0)
        below = np.minimum(column, 0.0)
        by_column = 2.0 * below
        by_column[1:] += 2.0 * rise
        by_column[:-1] -= 2.0 * kept * rise
        derivative = lfilter([1.0], c, column)
        value = float(rise @ rise + below @ below)
        return value, -_correlate(by_column, derivative, c.size)

    def optimize(
        self,
        start: np.ndarray,
        max_iterations: int,
        gradient_tolerance: float,
        penalty: float = 0.0,
    ) -> tuple[np.ndarray, OptimizationResult]:
        """L-BFGS, from coefficients with any leading one.

        Args:
          start: coefficients, shape [p].
          max_iterations: of L-BFGS, over all restarts.
          gradient_tolerance: converged when no derivative exceeds this.
          penalty: on increases of the first column of `C`, for `inverse` problems.

        Returns:
          The coefficients, shape [p], leading 1, and the result; its value is that without
          the penalty.

        Raises:
          ValueError: if the objective is not finite at the start.
        """
        began = time.perf_counter()
        position = np.asarray(start[1:], np.float64) / start[0]
        if not np.isfinite(self.value_and_gradient(position, penalty)[0]):
            raise ValueError("The objective must be finite and > 0 at the start.")
        found = descent.minimize(
            lambda x: self.value_and_gradient(x, penalty),
            position,
            max_iterations,
            gradient_tolerance,
            _FIRST_STEP,
            _PENALIZED_DECREASE if penalty else _LEAST_DECREASE,
        )
        result = OptimizationResult(
            position=found.position,
            converged=found.converged,
            message=found.message,
            value=math.exp(self.value_and_gradient(found.position)[0]),
            gradient_norm=found.gradient_norm,
            num_iterations=found.num_iterations,
            num_evaluations=found.num_evaluations,
            seconds=time.perf_counter() - began,
        )
        return np.concatenate([[1.0], found.position]), result


def _correlate(x: np.ndarray, y: np.ndarray, count: int) -> np.ndarray:
    """`sum_t x[t] y[t - i]` for i < count."""
    n = x.size
    return np.array([x[i:] @ y[: n - i] for i in range(count)])
