"""Optimal Toeplitz strategies for Toeplitz workloads, in NumPy alone.

The problem of `optimize.toeplitz` where `A C^-1` is Toeplitz and the objective is the mean
or the last per-step error: value and gradient are a few recurrences of `n` terms, O(n p)
an evaluation, without tracing. `optimize.toeplitz` does all else.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from tf_bandmf.optimize import descent
from tf_bandmf.optimize.options import Options
from tf_bandmf.optimize.result import OptimizationResult
from tf_bandmf.optimize.toeplitz_sensitivity import SquaredSensitivity, correlate
from tf_bandmf.workloads import Workload

# Named objectives, and what they are for errors that grow from step to step.
_OBJECTIVES = {"mean": "mean", "last": "last", "max": "last"}
# From the square root, longer first steps leave the region of stable inverses.
_FIRST_STEP = 0.05
# Decrease of the log squared error in 20 iterations.
_LEAST_DECREASE = 1e-12


def named_objective(workload: Workload, objective: object) -> str | None:
    """The name "mean" or "last"; None where `optimize.toeplitz` is needed."""
    if not workload.is_toeplitz or not isinstance(objective, str):
        return None
    return _OBJECTIVES.get(objective)


class SeriesProblem:
    """log(squared error) + log(squared sensitivity), and gradient.

    Variables are the coefficients after the leading 1.

    Args:
      workload: A, Toeplitz.
      objective: "mean" or "last".
      sensitivity: under the participation.
      inverse: whether the coefficients are those of `C^-1` and not those of `C`.
    """

    def __init__(
        self,
        workload: Workload,
        objective: str,
        sensitivity: SquaredSensitivity,
        inverse: bool,
    ) -> None:
        n = workload.num_steps
        self.inverse = inverse
        self._factor = workload.inverse_coefficients
        self._column = workload.first_column()
        # Term t of the first column of B is in n - t rows.
        is_mean = objective == "mean"
        self._weights = (n - np.arange(n)) / n if is_mean else np.ones(n)
        self._first = np.eye(1, n)[0]
        self._sensitivity = sensitivity

    def value_and_gradient(self, position: np.ndarray) -> tuple[float, np.ndarray]:
        """At the coefficients [p - 1]; infinite where the recurrences overflow."""
        c = np.concatenate([[1.0], position])
        with np.errstate(all="ignore"):
            error, by_error = self._error(c)
            squared, by_squared = self._sensitivity.of_coefficients(c, self.inverse)
            value = np.log(error) + np.log(squared)
            gradient = by_error / error + by_squared / squared
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
            response = lfilter([1.0], product, self._first)
            derivative, sign = lfilter(self._factor, product, response), -2.0
        weighted = self._weights * response
        return float(weighted @ response), sign * correlate(weighted, derivative, p)

    def optimize(
        self,
        start: np.ndarray,
        options: Options,
    ) -> tuple[np.ndarray, OptimizationResult]:
        """L-BFGS, from coefficients with any leading one.

        Args:
          start: coefficients, shape [p].
          options: when to stop; the decrease has a tolerance of its own.

        Returns:
          The coefficients, shape [p], leading 1, and the result.

        Raises:
          ValueError: if the objective is not finite at the start.
        """
        position = np.asarray(start[1:], np.float64) / start[0]
        if not np.isfinite(self.value_and_gradient(position)[0]):
            raise ValueError("The objective must be finite and > 0 at the start.")
        result = descent.minimize(
            self.value_and_gradient,
            position,
            options.max_iterations,
            options.gradient_tolerance,
            _FIRST_STEP,
            _LEAST_DECREASE,
        )
        result = dataclasses.replace(result, value=math.exp(result.value))
        return np.append(1.0, result.position), result
