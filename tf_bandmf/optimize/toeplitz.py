"""Optimal Toeplitz strategies, `C` banded or `C^-1` banded, in O(n w) an evaluation.

The squared error of step `i` is a partial sum of squares of `w = C^-1 a`, `a` the first
column of the workload (arXiv:2405.15913, Propositions 3.1 and C.1). A learning-rate
schedule makes `A C^-1` lose its Toeplitz structure; then the recursion of
`tf_bandmf.analysis.gram_recursion` takes over, in O(n w^2).
"""

from __future__ import annotations

from typing import Callable

import numpy as np
import tensorflow as tf

from tf_bandmf import matrices
from tf_bandmf.analysis import gram_recursion
from tf_bandmf.optimize import banded_matrices, lbfgs, series, toeplitz_sensitivity
from tf_bandmf.optimize.objectives import Objective
from tf_bandmf.optimize.result import OptimizationResult
from tf_bandmf.workloads import Workload

# From the square root, longer first steps leave the region of stable inverses.
_FIRST_STEP = 0.05


def repeated_column_squared_norm(
    column: tf.Tensor, num_steps: int, separation: int, participations: int
) -> tf.Tensor:
    """`||sum of columns 0, b, ..., (k - 1) b||^2` of a Toeplitz matrix, differentiable.

    The squared sensitivity if the column is non-negative and non-increasing
    (arXiv:2601.22334, Theorem 1), and if it has at most b entries.

    Args:
      column: the first column, shape [w], w <= n.
      num_steps: n.
      separation: b.
      participations: k <= ceil(n / b).
    """
    w = column.shape[0]
    if w <= separation:
        # The columns do not overlap; those near the end are cut off.
        starts = np.arange(participations) * separation
        lengths = np.minimum(num_steps - starts, w)
        partial = tf.cumsum(column**2)
        return tf.reduce_sum(tf.gather(partial, lengths - 1))
    # Row r of the table holds steps r b, ..., r b + b - 1.
    missing = -num_steps % separation
    table = tf.pad(column, [[0, num_steps - w + missing]])
    table = tf.cumsum(tf.reshape(table, [-1, separation]), axis=0)
    if participations < table.shape[0]:
        expired = tf.pad(table[:-participations], [[participations, 0], [0, 0]])
        table -= expired
    return tf.reduce_sum(tf.reshape(table, [-1])[:num_steps] ** 2)


def inverse_squared_sensitivity(
    num_steps: int, separation: int, participations: int, fixed_order: bool
) -> Callable[[tf.Tensor], tf.Tensor]:
    """`toeplitz_sensitivity.SquaredSensitivity`, differentiable."""
    function = toeplitz_sensitivity.SquaredSensitivity(
        num_steps, separation, participations, fixed_order
    )

    def on_host(column: np.ndarray) -> tuple[np.float64, np.ndarray]:
        value, by_column = function(column)
        return np.float64(value), by_column

    @tf.custom_gradient
    def squared(column: tf.Tensor) -> tuple[tf.Tensor, Callable[..., tf.Tensor]]:
        value, by_column = tf.numpy_function(
            on_host, [column], [tf.float64, tf.float64], stateful=False
        )
        value.set_shape([])
        by_column.set_shape(column.shape)
        return value, lambda upstream: upstream * by_column

    return squared


def increasing_errors(response: tf.Tensor) -> tf.Tensor:
    """Per-step errors of a Toeplitz `A C^-1` whose first column is `response`."""
    return tf.cumsum(response**2)


def banded_errors(workload: Workload) -> Callable[[tf.Tensor], tf.Tensor]:
    """Per-step errors of the strategy with given coefficients [bands]."""
    n = workload.num_steps
    if workload.is_toeplitz:

        def toeplitz_errors(coefficients: tf.Tensor) -> tf.Tensor:
            # B = (C A^-1)^-1 as series.
            factor = tf.constant(workload.inverse_coefficients)
            room = factor.shape[0] - 1
            product = series.convolve(tf.pad(coefficients, [[0, room]]), factor)
            return increasing_errors(series.inverse(product, n))

        return toeplitz_errors

    def errors(coefficients: tf.Tensor) -> tf.Tensor:
        columns = banded_matrices.toeplitz_columns(coefficients, n)
        rows = banded_matrices.times_inverse_workload(columns, workload)
        return gram_recursion.inverse_row_norms(rows)

    return errors


def banded_inverse_errors(workload: Workload) -> Callable[[tf.Tensor], tf.Tensor]:
    """Per-step errors of the strategy whose inverse has given coefficients [bands]."""
    n = workload.num_steps
    if workload.is_toeplitz:
        column = tf.constant(workload.first_column())

        def toeplitz_errors(coefficients: tf.Tensor) -> tf.Tensor:
            return increasing_errors(series.convolve(column, coefficients))

        return toeplitz_errors
    regression = tf.constant(matrices.as_rows(workload.inverse()))

    def errors(coefficients: tf.Tensor) -> tf.Tensor:
        columns = banded_matrices.toeplitz_columns(coefficients, n)
        average = banded_matrices.rows_from_columns(columns)
        return gram_recursion.filtered_row_norms(regression, average)

    return errors


def log_loss(
    workload: Workload,
    reduction: Callable[[tf.Tensor], tf.Tensor],
    separation: int,
    participations: int,
    inverse: bool = False,
    fixed_order: bool = False,
) -> Callable[[tf.Tensor], tf.Tensor]:
    """The function that `optimize` minimizes, of the coefficients after the leading 1.

    The logarithm of the reduced per-step errors times the squared sensitivity.
    """
    n = workload.num_steps
    errors = (banded_inverse_errors if inverse else banded_errors)(workload)
    one = tf.ones([1], tf.float64)
    any_sign = inverse_squared_sensitivity(n, separation, participations, fixed_order)

    def loss(position: tf.Tensor) -> tf.Tensor:
        coefficients = tf.concat([one, position], axis=0)
        if inverse:
            squared = any_sign(series.inverse(coefficients, n))
        else:
            squared = repeated_column_squared_norm(
                coefficients, n, separation, participations
            )
        return tf.math.log(reduction(errors(coefficients))) + tf.math.log(squared)

    return loss


def optimize(
    workload: Workload,
    objective: Objective,
    start: np.ndarray,
    separation: int,
    participations: int,
    options: lbfgs.Options,
    inverse: bool = False,
    fixed_order: bool = False,
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
      separation: b.
      participations: k.
      options: when to stop.
      inverse: whether the coefficients are those of `C^-1` (BandInvMF,
        arXiv:2505.12128, section 5) and not those of `C`.
      fixed_order: whether an example takes part at `i, i + b, ...` alone.

    Returns:
      The coefficients, shape [bands], leading 1, and the result.
    """
    rates = separation, participations
    position = start[1:] / start[0]
    for stage in objective.smooth_stages:
        loss = log_loss(workload, stage, *rates, inverse, fixed_order)
        result = lbfgs.minimize(loss, position, 1.0, options, first_step=_FIRST_STEP)
        position = result.position
    return np.concatenate([[1.0], position]), result
