"""The error of Toeplitz strategies, computed with TensorFlow.

This module covers the two cases that the module `toeplitz` does not cover: custom
objectives, and learning-rate schedules. With a schedule, the error matrix `A C^-1` of a
workload `A` and a strategy `C` is not Toeplitz. The recursion of
`tf_bandmf.analysis.gram_recursion` computes the errors in time O(n w^2) for n steps and
w bands.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tf_bandmf.analysis import gram_recursion
from tf_bandmf.optimize import banded_matrices, lbfgs, maximum, objectives
from tf_bandmf.optimize.options import Options
from tf_bandmf.optimize.result import OptimizationResult
from tf_bandmf.workloads import Workload


def per_step_errors(
    coefficients: tf.Tensor, workload: Workload, inverse: bool
) -> tf.Tensor:
    """Returns the per-step squared errors, shape [n], of a Toeplitz strategy `C`.

    The coefficients, shape [bands], are those of `C` or, if `inverse` is True, of `C^-1`.
    """
    bands = coefficients.shape[0]
    columns = coefficients[:, None] * banded_matrices.inside(bands, workload.num_steps)
    if inverse:
        regression = tf.constant(workload.inverse().as_rows())
        average = banded_matrices.rows_from_columns(columns)
        return gram_recursion.filtered_row_norms(regression, average)
    rows = banded_matrices.times_inverse_workload(columns, workload)
    return gram_recursion.inverse_row_norms(rows)


class TracedError:
    """An objective of a Toeplitz strategy's per-step squared errors, with its gradient.

    Args:
      workload: the workload.
      objective: objective of the per-step squared errors.
      bands: number of coefficients.
      inverse: True if the coefficients belong to `C^-1`.
    """

    def __init__(
        self,
        workload: Workload,
        objective: objectives.Objective,
        bands: int,
        inverse: bool,
    ) -> None:
        self._workload, self._inverse = workload, inverse
        is_max = objective == objectives.MAX
        self._smooth = maximum.SmoothMaximum(workload.num_steps) if is_max else None
        reduction = self._smooth or objective.reduction
        self._traced = lbfgs.value_and_gradient(
            lambda c: reduction(per_step_errors(c, workload, inverse)), bands
        )

    def __call__(self, c: np.ndarray) -> tuple[float, np.ndarray]:
        """Returns the objective and its gradient at the p coefficients `c`.

        If the objective is the maximum of the errors, this method returns the smooth
        approximation `SmoothMaximum` with its current order instead.
        """
        value, gradient = self._traced(tf.constant(c))
        return float(value), gradient.numpy()

    def minimize(
        self, descend: maximum.Minimize, start: np.ndarray, options: Options
    ) -> OptimizationResult:
        """Minimizes the objective times the squared sensitivity.

        Args:
          descend: function that minimizes the result of `__call__` times the squared
            sensitivity. For the maximum of the errors, it is called once for each
            order of `SmoothMaximum`.
          start: initial values of the coefficients after the leading 1, shape [p - 1].
          options: stopping rules.
        """
        if self._smooth is None:
            return descend(start, options=options)

        def errors(position: np.ndarray) -> np.ndarray:
            c = tf.constant(np.append(1.0, position))
            return np.asarray(per_step_errors(c, self._workload, self._inverse))

        return maximum.minimize(self._smooth, descend, errors, None, start, options)
