"""Optimal banded strategies `C` with general columns.

This module solves Problem 2.1 of arXiv:2405.15913 in the parametrization of its section
3.1, with the O(n bands^2) recursion of `analysis.gram_recursion` in place of Algorithm 2.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable

import numpy as np
import tensorflow as tf

from tf_bandmf.analysis import gram_recursion
from tf_bandmf.files import configs
from tf_bandmf.optimize import banded_matrices, certificate, lbfgs, maximum
from tf_bandmf.optimize.result import OptimizationResult
from tf_bandmf.workloads import Workload

# Compiling with XLA is worthwhile if the number of entries of C is in this range, and C
# has at most this many bands.
_XLA_ENTRIES, _MOST_XLA_BANDS = range(2**15, 2**21), 64


class _Problem:
    """The optimization problem: variables, and errors as functions of the variables.

    The variables `y` are the entries below the diagonal, divided by the diagonal and by a
    scale `s_j` of the column: column `j` is `[1, s_j y_1j, s_j y_2j, ...] / norm`.

    Args:
      workload: A.
      objective: "mean" or "max" of the per-step squared errors.
      bands: number of bands of C.

    Attributes:
      minimizer: minimizer of the objective.
      maximum: smooth function that the minimizer minimizes if the objective is the maximum
        of the errors.
    """

    def __init__(self, workload: Workload, objective: str, bands: int) -> None:
        n = workload.num_steps
        self._workload, self._bands = workload, bands
        self._scale = _column_scale(n, objective)
        self._num_variables = (bands - 1) * n
        self.maximum = maximum.SmoothMaximum(n) if objective == "max" else None
        reduction = self.maximum or tf.reduce_mean

        def log_loss(position: tf.Tensor) -> tf.Tensor:
            return tf.math.log(reduction(self.errors(self.columns(position))))

        # XLA was measured to be 1.6 times as fast for 32 bands, and slower for 128;
        # compiling takes 1.3 s.
        by_xla = bands <= _MOST_XLA_BANDS and bands * n in _XLA_ENTRIES
        self.minimizer = lbfgs.Minimizer(log_loss, self._num_variables, by_xla)

    def columns(self, position: tf.Tensor) -> tf.Tensor:
        """Returns the columns of C, shape [bands, n], from the variables."""
        n = self._workload.num_steps
        columns = tf.reshape(position, [-1, n]) * self._scale
        columns = tf.concat([tf.ones([1, n], tf.float64), columns], axis=0)
        columns *= banded_matrices.inside(self._bands, n)
        return columns * tf.math.rsqrt(tf.reduce_sum(columns**2, axis=0))

    def position(self, columns: np.ndarray) -> np.ndarray:
        """Returns the variables for columns [bands, n] with a positive diagonal."""
        return (columns[1:] / columns[:1] / self._scale).reshape(-1)

    def errors(self, columns: tf.Tensor) -> tf.Tensor:
        """Returns the per-step squared errors, shape [n]."""
        rows = banded_matrices.times_inverse_workload(columns, self._workload)
        return gram_recursion.inverse_row_norms(rows)

    def bound(
        self, position: np.ndarray, weights: np.ndarray
    ) -> tuple[float, np.ndarray]:
        """Returns a lower bound on feasible strategies' weighted error, and the errors."""
        variables, (errors_at, band_at) = tf.constant(position), self._programs
        errors, norms = (x.numpy() for x in errors_at(variables))
        band, rows, product = (
            x.numpy() for x in band_at(variables, tf.constant(weights))
        )
        error = float(weights @ errors)
        at = certificate.Tangent(error, band, norms, rows, product, weights)
        return certificate.lower_bound(at), errors

    @functools.cached_property
    def _programs(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Two compiled functions of the variables.

        The first returns the errors and the column norms, the second the bands of the
        matrices `H`, `C` and `M` in `certificate`.
        """

        def errors(position: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            columns = self.columns(position)
            return self.errors(columns), tf.norm(columns, axis=0)

        def gram_band(
            position: tf.Tensor, weights: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            columns = self.columns(position)
            rows = banded_matrices.times_inverse_workload(columns, self._workload)
            strategy = banded_matrices.rows_from_columns(columns)
            band = gram_recursion.doubly_filtered_band(strategy, rows, weights)
            return band, strategy, rows

        # These are concrete functions because TensorFlow would otherwise warn about
        # retracing after a few problems.
        position = tf.TensorSpec([self._num_variables], tf.float64)
        weights = tf.TensorSpec([self._workload.num_steps], tf.float64)
        return (
            tf.function(errors, autograph=False).get_concrete_function(position),
            tf.function(gram_band, autograph=False).get_concrete_function(
                position, weights
            ),
        )


def _column_scale(num_steps: int, objective: str) -> np.ndarray:
    """Returns scales of columns, shape [n], that make second derivatives about equal.

    For the mean error, second derivatives decrease like the square root of the number of
    remaining steps. This was measured for prefix sums and for momentum.
    """
    if objective == "max":
        return np.ones(num_steps)
    return (num_steps / (num_steps - np.arange(num_steps))) ** 0.25


def optimize(
    workload: Workload,
    objective: str,
    start: np.ndarray,
    options: lbfgs.Options,
    is_certified: bool = True,
) -> tuple[np.ndarray, OptimizationResult]:
    """Returns the banded strategy with the smallest objective of the per-step errors.

    Args:
      workload: A.
      objective: "mean" or "max" of the per-step squared errors at unit sensitivity.
      start: columns of a strategy, `start[i, j] = C[j + i, j]`, shape [bands, n], with
        a positive diagonal.
      options: stopping rules.
      is_certified: True to certify the gap, which takes as long as a dozen iterations.

    Returns:
      The columns of norm 1, shape [bands, n], and the result, with a certified gap if
      `is_certified` is True. The result's value is the objective for the returned columns.
    """
    config = configs.dumps(workload.to_config())
    problem = _traced(config, objective, len(start))
    position, bound = problem.position(start), problem.bound if is_certified else None
    minimize = functools.partial(
        problem.minimizer.minimize, scale=float(workload.num_steps), options=options
    )

    def errors_of(at: np.ndarray) -> np.ndarray:
        return np.asarray(problem.errors(problem.columns(tf.constant(at))))

    if problem.maximum is None:
        equal = np.full(workload.num_steps, 1.0 / workload.num_steps)
        gap = None if bound is None else certificate.Gap(bound, equal)
        result = minimize(position, gap=gap)
    else:
        result = maximum.minimize(
            problem.maximum, minimize, errors_of, bound, position, options
        )
    columns = problem.columns(tf.constant(result.position))
    reduction = tf.reduce_mean if problem.maximum is None else tf.reduce_max
    value = float(reduction(problem.errors(columns)))
    return columns.numpy(), dataclasses.replace(result, value=value)


# The last problem is cached because the same problem is usually solved twice: first for
# a draft, then for a plan.
@functools.lru_cache(maxsize=1)
def _traced(config: str, objective: str, bands: int) -> _Problem:
    """Returns the traced problem that `optimize` solves.

    The workload is passed as its configuration, because a cached function needs
    hashable arguments.
    """
    return _Problem(Workload.from_config(configs.loads(config)), objective, bands)
