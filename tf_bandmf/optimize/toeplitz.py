"""Optimal Toeplitz strategies, `C` banded or `C^-1` banded, in TensorFlow.

For what `series_problem` does not do: learning-rate schedules, by which `A C^-1` loses its
Toeplitz structure, and objectives of a caller's own. Errors come from the recursion of
`tf_bandmf.analysis.gram_recursion`, in O(n w^2).
"""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import tensorflow as tf

from tf_bandmf.analysis import gram_recursion
from tf_bandmf.optimize import (
    banded_matrices,
    lbfgs,
    maximum,
    objectives,
    toeplitz_sensitivity,
)
from tf_bandmf.optimize.objectives import Objective
from tf_bandmf.optimize.result import OptimizationResult
from tf_bandmf.workloads import Workload

# From the square root, longer first steps leave the region of stable inverses.
_FIRST_STEP = 0.05


def squared_sensitivity(
    function: toeplitz_sensitivity.SquaredSensitivity, inverse: bool
) -> Callable[[tf.Tensor], tf.Tensor]:
    """`SquaredSensitivity.of_coefficients`, differentiable."""

    def on_host(coefficients: np.ndarray) -> tuple[np.float64, np.ndarray]:
        value, gradient = function.of_coefficients(coefficients, inverse)
        return np.float64(value), gradient

    @tf.custom_gradient
    def squared(
        coefficients: tf.Tensor,
    ) -> tuple[tf.Tensor, Callable[..., tf.Tensor]]:
        value, gradient = tf.numpy_function(
            on_host, [coefficients], [tf.float64, tf.float64], stateful=False
        )
        value.set_shape([])
        gradient.set_shape(coefficients.shape)
        return value, lambda upstream: upstream * gradient

    return squared


def per_step_errors(
    workload: Workload, inverse: bool
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Those of the strategy with given coefficients [bands], of `C` or of `C^-1`."""
    n = workload.num_steps
    regression = tf.constant(workload.inverse().as_rows())

    def errors(coefficients: tf.Tensor) -> tf.Tensor:
        columns = banded_matrices.toeplitz_columns(coefficients, n)
        if inverse:
            average = banded_matrices.rows_from_columns(columns)
            return gram_recursion.filtered_row_norms(regression, average)
        rows = banded_matrices.times_inverse_workload(columns, workload)
        return gram_recursion.inverse_row_norms(rows)

    return errors


def log_loss(
    workload: Workload,
    reduction: Callable[[tf.Tensor], tf.Tensor],
    sensitivity: toeplitz_sensitivity.SquaredSensitivity,
    inverse: bool = False,
) -> Callable[[tf.Tensor], tf.Tensor]:
    """The function that `optimize` minimizes, of the coefficients after the leading 1.

    The logarithm of the reduced per-step errors times the squared sensitivity.
    """
    errors = per_step_errors(workload, inverse)
    squared = squared_sensitivity(sensitivity, inverse)
    one = tf.ones([1], tf.float64)

    def loss(position: tf.Tensor) -> tf.Tensor:
        coefficients = tf.concat([one, position], axis=0)
        error = reduction(errors(coefficients))
        return tf.math.log(error) + tf.math.log(squared(coefficients))

    return loss


def optimize(
    workload: Workload,
    objective: Objective,
    start: np.ndarray,
    sensitivity: toeplitz_sensitivity.SquaredSensitivity,
    options: lbfgs.Options,
    inverse: bool = False,
) -> tuple[np.ndarray, OptimizationResult]:
    """The Toeplitz coefficients with the smallest error at unit sensitivity.

    Minimized is the objective of the per-step errors times the squared sensitivity: for
    coefficients of `C` the squared norm of the sum of the columns `0, b, ..., (k - 1)
    b`, a lower bound on it where Theorem 1 of arXiv:2601.22334 does not apply.
    Scale-free: the leading coefficient is 1.

    Args:
      workload: A.
      objective: of the per-step squared errors.
      start: coefficients to start from, shape [bands], the first one not zero.
      sensitivity: under the participation.
      options: when to stop.
      inverse: whether the coefficients are those of `C^-1` (BandInvMF,
        arXiv:2505.12128, section 5) and not those of `C`.

    Returns:
      The coefficients, shape [bands], leading 1, and the result.
    """
    is_max = objective == objectives.MAX
    smooth = maximum.SmoothMaximum(workload.num_steps) if is_max else None
    loss = log_loss(workload, smooth or objective.reduction, sensitivity, inverse)
    minimizer = lbfgs.Minimizer(loss, start.size - 1, options)
    position = start[1:] / start[0]

    def errors(at: np.ndarray) -> Any:
        return per_step_errors(workload, inverse)(tf.constant(np.r_[1.0, at])).numpy()

    if smooth is None:
        result = minimizer.minimize(position, 1.0, first_step=_FIRST_STEP)
    else:
        result = maximum.minimize(
            smooth, minimizer, errors, None, position, 1.0, options, _FIRST_STEP
        )
    return np.append(1.0, result.position), result
