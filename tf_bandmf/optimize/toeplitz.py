"""Optimal Toeplitz strategies with banded `C` or `C^-1`, found with NumPy.

Let `A` be the workload. If `A C^-1` is Toeplitz and the objective is the mean or the last
per-step error, the objective and its gradient are computed without TensorFlow from a few
recurrences, in time O(n p) for n steps and p bands. The module `traced_toeplitz` computes
all other objectives.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Callable

import numpy as np

from tf_bandmf.optimize import descent
from tf_bandmf.optimize.options import Options
from tf_bandmf.optimize.result import OptimizationResult
from tf_bandmf.optimize.toeplitz_sensitivity import SquaredSensitivity, correlate
from tf_bandmf.workloads import Workload

if TYPE_CHECKING:
    from tf_bandmf.optimize.objectives import ObjectiveLike

# Maps each named objective to the objective to minimize instead. If errors never
# decrease from step to step, the maximum error is the last error.
_OBJECTIVES = {"mean": "mean", "last": "last", "max": "last"}
# The maximum change of a coefficient in the first step. If the descent starts from the
# square root of the workload, a longer step would lead to a matrix whose inverse has
# exponentially growing entries.
_FIRST_STEP = 0.05
# A descent ends if the log squared error decreases by less than one of these tolerances
# in 20 iterations. With DRAFT, the final error is within about 0.3% of the minimum
# error.
LEAST_DECREASE = 1e-12
DRAFT = 1e-2

# A function of p coefficients that returns the objective of the per-step squared errors,
# and its gradient.
Error = Callable[[np.ndarray], "tuple[float, np.ndarray]"]


def optimize(
    workload: Workload,
    objective: ObjectiveLike,
    start: np.ndarray,
    sensitivity: SquaredSensitivity,
    options: Options,
    inverse: bool = False,
) -> tuple[np.ndarray, OptimizationResult, str, Callable[..., Any]]:
    """Returns the Toeplitz coefficients with the minimum error at unit sensitivity.

    The minimized function is a product: the objective of the per-step squared errors,
    times the squared sensitivity. For coefficients of `C`, the squared sensitivity is
    computed as the squared norm of the sum of the columns `0, b, ..., (k - 1) b`, where
    `b` is the min separation and `k` the number of participations. If Theorem 1 of
    arXiv:2601.22334 does not apply, this norm is only a lower bound on the sensitivity.
    The scale of `C` does not matter, so the leading coefficient is fixed at 1.

    Args:
      workload: the workload.
      objective: a name, or a function of the per-step squared errors.
      start: initial coefficients, shape [bands]; the first coefficient must not be zero.
      sensitivity: function that computes the squared sensitivity.
      options: stopping rules, with `LEAST_DECREASE` or `DRAFT` as `decrease_tolerance`.
      inverse: True if the coefficients belong to `C^-1` (BandInvMF, arXiv:2505.12128,
        section 5), False if they belong to `C`.

    Returns:
      The coefficients, shape [bands], with a leading 1; the result of the optimization;
      the objective's name; and the objective as a function of the errors.

    Raises:
      ValueError: if the objective's name is unknown, or if the objective is not finite at
        the initial coefficients.
    """
    start = start / start[0]
    name = None
    if workload.is_toeplitz and isinstance(objective, str):
        name = _OBJECTIVES.get(objective)
    if name is not None:
        error = SeriesError(workload, name, inverse)
        problem = ToeplitzProblem(error, sensitivity, inverse)
        result = problem.minimize(start[1:], options)
        reduction: Callable[..., Any] = np.mean if name == "mean" else np.max
    else:
        from tf_bandmf.optimize import objectives, traced_toeplitz

        goal = objectives.resolve(objective, errors_increase=workload.is_toeplitz)
        name, reduction = goal.name, goal.reduction
        traced = traced_toeplitz.TracedError(workload, goal, start.size, inverse)
        descend = ToeplitzProblem(traced, sensitivity, inverse).minimize
        result = traced.minimize(descend, start[1:], options)
    return np.append(1.0, result.position), result, name, reduction


class ToeplitzProblem:
    """The function log(squared error) + log(squared sensitivity), with its gradient.

    Its variables are the coefficients after the leading 1.

    Args:
      error: function that computes the squared error and its gradient.
      sensitivity: function that computes the squared sensitivity and its gradient.
      inverse: True for coefficients of `C^-1`, False for coefficients of `C`.
    """

    def __init__(
        self, error: Error, sensitivity: SquaredSensitivity, inverse: bool
    ) -> None:
        self._error, self._sensitivity, self._inverse = error, sensitivity, inverse

    def value_and_gradient(self, position: np.ndarray) -> tuple[float, np.ndarray]:
        """Returns the value and gradient at the p - 1 coefficients after the leading 1.

        If a number overflows, the value is inf and the gradient is 0.
        """
        c = np.append(1.0, position)
        with np.errstate(all="ignore"):
            error, by_error = self._error(c)
            squared, by_squared = self._sensitivity.of_coefficients(c, self._inverse)
            value = np.log(error) + np.log(squared)
            gradient = by_error / error + by_squared / squared
        if not (np.isfinite(value) and np.all(np.isfinite(gradient))):
            return np.inf, np.zeros(position.size)
        return float(value), gradient[1:]

    def minimize(self, start: np.ndarray, options: Options) -> OptimizationResult:
        """Minimizes the function with L-BFGS.

        Args:
          start: initial values of the p - 1 coefficients after the leading 1.
          options: stopping rules.

        Raises:
          ValueError: if the objective at `start` is not finite and > 0.
        """
        if not np.isfinite(self.value_and_gradient(start)[0]):
            raise ValueError("The initial objective must be finite and > 0.")
        result = descent.minimize(self.value_and_gradient, start, options, _FIRST_STEP)
        return dataclasses.replace(result, value=math.exp(result.value))


class SeriesError:
    """The mean or last per-step squared error of a Toeplitz strategy, and its gradient.

    Args:
      workload: the workload, whose matrix `A` must be Toeplitz.
      objective: "mean" or "last".
      inverse: True for coefficients of `C^-1`, False for coefficients of `C`.
    """

    def __init__(self, workload: Workload, objective: str, inverse: bool) -> None:
        n = workload.num_steps
        self._inverse, self._factor = inverse, workload.inverse_coefficients
        self._column = workload.first_column()
        # The matrix A C^-1 is Toeplitz, so its rows contain only entries of its first
        # column. The squared error of a step is the squared norm of a row. Entry t of
        # the column occurs in n - t of the n rows, so the weight of its square in the
        # mean error is (n - t) / n. The last row contains each entry once, so all
        # weights in the last error are 1.
        is_mean = objective == "mean"
        self._weights = (n - np.arange(n)) / n if is_mean else np.ones(n)
        self._first = np.eye(1, n)[0]

    def __call__(self, c: np.ndarray) -> tuple[float, np.ndarray]:
        """Returns the squared error and its gradient at the p coefficients `c`."""
        # SciPy is imported here because the import is slow.
        from scipy.signal import lfilter

        if self._inverse:
            response, derivative = lfilter(c, [1.0], self._column), self._column
            sign = 2.0
        else:
            product = np.convolve(c, self._factor)[: self._first.size]
            response = lfilter([1.0], product, self._first)
            derivative, sign = lfilter(self._factor, product, response), -2.0
        weighted = self._weights * response
        return float(weighted @ response), sign * correlate(
            weighted, derivative, c.size
        )
