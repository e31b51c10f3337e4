"""The error of Toeplitz strategies in TensorFlow.

For what `toeplitz` has no series of: learning-rate schedules, by which `A C^-1` loses its
Toeplitz structure, and objectives of a caller's own. Errors come from the recursion of
`tf_bandmf.analysis.gram_recursion`, in O(n w^2).
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tf_bandmf.analysis import gram_recursion
from tf_bandmf.optimize import banded_matrices, lbfgs, maximum, objectives
from tf_bandmf.optimize.options import Options
from tf_bandmf.optimize.result import OptimizationResult
from tf_bandmf.optimize.toeplitz import ToeplitzProblem
from tf_bandmf.optimize.toeplitz_sensitivity import SquaredSensitivity
from tf_bandmf.workloads import Workload


def per_step_errors(
    coefficients: tf.Tensor, workload: Workload, inverse: bool
) -> tf.Tensor:
    """Squared errors [n] of the strategy with coefficients [bands], of `C` or `C^-1`."""
    columns = banded_matrices.toeplitz_columns(coefficients, workload.num_steps)
    if inverse:
        regression = tf.constant(workload.inverse().as_rows())
        average = banded_matrices.rows_from_columns(columns)
        return gram_recursion.filtered_row_norms(regression, average)
    rows = banded_matrices.times_inverse_workload(columns, workload)
    return gram_recursion.inverse_row_norms(rows)


def minimize(
    workload: Workload,
    objective: objectives.Objective,
    start: np.ndarray,
    sensitivity: SquaredSensitivity,
    options: Options,
    inverse: bool,
) -> OptimizationResult:
    """The variables of `ToeplitzProblem` with the smallest error at unit sensitivity.

    Args:
      workload: A.
      objective: of the per-step squared errors.
      start: coefficients to start from, shape [bands], leading 1.
      sensitivity: under the participation.
      options: when to stop.
      inverse: whether the coefficients are those of `C^-1`.
    """
    is_max = objective == objectives.MAX
    smooth = maximum.SmoothMaximum(workload.num_steps) if is_max else None
    reduction = smooth or objective.reduction
    traced = lbfgs.value_and_gradient(
        lambda c: reduction(per_step_errors(c, workload, inverse)), start.size
    )

    def error(coefficients: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = traced(tf.constant(coefficients))
        return float(value), gradient.numpy()

    def errors(position: np.ndarray) -> np.ndarray:
        coefficients = tf.constant(np.append(1.0, position))
        return np.asarray(per_step_errors(coefficients, workload, inverse))

    problem = ToeplitzProblem(error, sensitivity, inverse)
    if smooth is None:
        return problem.minimize(start[1:], options)
    return maximum.minimize(smooth, problem.minimize, errors, None, start[1:], options)
