"""Optimal banded strategies `C` whose columns may all differ.

If all columns must have the same norm, this module solves Problem 2.1 of arXiv:2405.15913
in the parametrization of section 3.1 of that paper, but with the O(n bands^2) recursion
of `analysis.gram_recursion` in place of Algorithm 2. Otherwise, it solves the problem of
arXiv:2306.08153, Appendix B.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, Callable

import numpy as np
import tensorflow as tf

from tf_bandmf.analysis import gram_recursion
from tf_bandmf.optimize import (
    banded_matrices,
    certificate,
    lbfgs,
    maximum,
    objectives,
)
from tf_bandmf.optimize.objectives import Objective
from tf_bandmf.optimize.result import OptimizationResult
from tf_bandmf.workloads import Workload

# Compiling with XLA is worthwhile if the number of entries in the bands of C is in
# _XLA_ENTRIES, and C has at most _MOST_XLA_BANDS bands.
_XLA_ENTRIES, _MOST_XLA_BANDS = range(2**15, 2**21), 64
_NAMED = (objectives.MEAN, objectives.MAX)


class _Problem:
    """An optimization problem: a strategy and its errors, as functions of variables.

    If all columns of the strategy C must have norm 1, the variables are the entries
    below the diagonal, each divided by the diagonal entry of its column and by a scale
    `s_j` of column j (see `_column_scale`). Otherwise, the variables are all entries of
    the bands, and `columns` scales them such that the squared norms of the columns
    `i, i + b, ...` sum to 1 for each i. In measurements, each of these two problems was
    solved faster with its own variables than with those of the other problem.

    Args:
      workload: the workload.
      objective: objective of the per-step squared errors.
      bands: number of bands of C.
      separation: b, or None if all columns of C must have norm 1.

    Attributes:
      minimizer: minimizer of the objective.
      maximum: if the objective is the maximum of the errors, the smooth function that the
        minimizer minimizes instead; otherwise None.
    """

    def __init__(
        self,
        workload: Workload,
        objective: Objective,
        bands: int,
        separation: int | None,
    ) -> None:
        n = workload.num_steps
        self._workload, self._bands, self._separation = workload, bands, separation
        self._scale = _column_scale(n, objective)
        self._num_variables = (bands - (separation is None)) * n
        is_maximum = objective == objectives.MAX
        self.maximum = maximum.SmoothMaximum(n) if is_maximum else None
        reduction = self.maximum or objective.reduction

        def log_loss(position: tf.Tensor) -> tf.Tensor:
            return tf.math.log(reduction(self.errors(self.columns(position))))

        # In measurements, XLA was 1.6 times as fast as TensorFlow's kernels with 32
        # bands, and slower with 128. Compiling takes 1.3 s. A custom objective may
        # contain operations that XLA does not compile.
        suits_xla = objective in (*_NAMED, objectives.LAST) and bands <= _MOST_XLA_BANDS
        by_xla = suits_xla and bands * n in _XLA_ENTRIES
        self.minimizer = lbfgs.Minimizer(log_loss, self._num_variables, by_xla)

    def columns(self, position: tf.Tensor) -> tf.Tensor:
        """Converts the variables to the columns of C, shape [bands, n]."""
        n = self._workload.num_steps
        columns = tf.reshape(position, [-1, n])
        if self._separation is None:
            columns *= self._scale
            columns = tf.concat([tf.ones([1, n], tf.float64), columns], axis=0)
        columns *= banded_matrices.inside(self._bands, n)
        squared = tf.reduce_sum(columns**2, axis=0)
        if self._separation is not None:
            epochs = -(-n // self._separation)
            missing = epochs * self._separation - n
            table = tf.reshape(tf.pad(squared, [[0, missing]]), [epochs, -1])
            squared = tf.tile(tf.reduce_sum(table, axis=0), [epochs])[:n]
        return columns * tf.math.rsqrt(squared)

    def position(self, columns: np.ndarray) -> np.ndarray:
        """Converts columns of C, shape [bands, n], to variables; C_jj must be > 0."""
        if self._separation is None:
            return (columns[1:] / columns[:1] / self._scale).reshape(-1)
        return (columns / np.linalg.norm(columns, axis=0)).reshape(-1)

    def errors(self, columns: tf.Tensor) -> tf.Tensor:
        """Returns the per-step squared errors, shape [n], of the strategy C."""
        rows = banded_matrices.times_inverse_workload(columns, self._workload)
        return gram_recursion.inverse_row_norms(rows)

    def bound(
        self,
        position: np.ndarray,
        support: Callable[[np.ndarray], tuple[np.ndarray, float]],
    ) -> tuple[float, np.ndarray]:
        """Returns a lower bound on the minimum objective, and a strategy's errors.

        Args:
          position: variables of the strategy from which the bound is computed. The
            closer this strategy is to the optimum, the better the bound.
          support: function that maps the strategy's errors to `w` and `c`, such that
            the objective of any errors v is at least `w @ v + c`.

        Returns:
          A lower bound on the objective that holds for all feasible strategies, and the
          per-step squared errors of the strategy at `position`.
        """
        variables, (errors_at, band_at) = tf.constant(position), self._programs
        errors, norms = (x.numpy() for x in errors_at(variables))
        groups = self._separation or self._workload.num_steps
        weights, offset = support(errors)
        bands = (x.numpy() for x in band_at(variables, tf.constant(weights)))
        error = float(weights @ errors)
        least = certificate.lower_bound(error, norms, groups, weights, *bands)
        return least + offset, errors

    @functools.cached_property
    def _programs(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Two traced functions of the variables.

        The first returns the errors and the column norms of C. The second also takes
        the weights of the steps, and returns the bands of the matrices `H`, `C` and `M`
        that the module `certificate` defines.
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

        # These are concrete functions because TensorFlow warns about retracing if a few
        # instances of this class each trace a `tf.function`.
        position = tf.TensorSpec([self._num_variables], tf.float64)
        weights = tf.TensorSpec([self._workload.num_steps], tf.float64)
        return (
            tf.function(errors, autograph=False).get_concrete_function(position),
            tf.function(gram_band, autograph=False).get_concrete_function(
                position, weights
            ),
        )


def _column_scale(num_steps: int, objective: Objective) -> np.ndarray:
    """Returns the scale `s_j` of each column in the variables of `_Problem`, shape [n].

    For the mean error, the scales make the second derivatives with respect to the
    variables about equal. In measurements without scales, the second derivatives for a
    column were about proportional to the square root of the number of steps from the
    column to the end. For all other objectives, the scales are 1.
    """
    if objective != objectives.MEAN:
        return np.ones(num_steps)
    return (num_steps / (num_steps - np.arange(num_steps))) ** 0.25


def optimize(
    workload: Workload,
    objective: Objective,
    start: np.ndarray,
    separation: int | None,
    options: lbfgs.Options,
    is_certified: bool = True,
) -> tuple[np.ndarray, OptimizationResult]:
    """Returns the banded strategy that minimizes an objective of the per-step errors.

    Args:
      workload: the workload.
      objective: objective of the per-step squared errors at unit sensitivity.
      start: columns of a strategy, `start[i, j] = C[j + i, j]`, shape [bands, n], with
        a positive diagonal.
      separation: None if all columns must have norm 1; or b if the squared norms of the
        columns `i, i + b, ...` must sum to 1 for each i.
      options: stopping rules.
      is_certified: True to certify the gap, which takes as long as a dozen iterations.

    Returns:
      The columns, shape [bands, n], and the result, whose `value` is the objective at
      these columns. If the objective is convex and `is_certified` is True, the result
      contains a certified gap.
    """
    # A custom objective is traced in every call, because its result may depend on state
    # that has changed since the previous call.
    trace = _traced if objective in _NAMED else _Problem
    problem = trace(workload, objective, len(start), separation)
    is_certified = is_certified and objective.is_convex
    position = problem.position(start)
    minimize = functools.partial(
        problem.minimizer.minimize, scale=float(workload.num_steps), options=options
    )
    # Every iterate gives a valid lower bound on the optimum; `best` is the largest bound.
    best = -math.inf

    def errors_of(at: np.ndarray) -> np.ndarray:
        return np.asarray(problem.errors(problem.columns(tf.constant(at))))

    def gap(at: np.ndarray) -> float:
        nonlocal best
        bound, errors = problem.bound(at, objective.support)
        best = max(best, bound)
        # At an exact optimum, rounding may make the bound larger than the objective.
        return max(0.0, 1.0 - best / float(objective.reduction(tf.constant(errors))))

    def weighted(at: np.ndarray, weights: np.ndarray) -> tuple[float, np.ndarray]:
        return problem.bound(at, lambda errors: (weights, 0.0))

    if problem.maximum is None:
        result = minimize(position, gap=gap if is_certified else None)
    else:
        bound = weighted if is_certified else None
        result = maximum.minimize(
            problem.maximum, minimize, errors_of, bound, position, options
        )
    columns = problem.columns(tf.constant(result.position))
    value = float(objective.reduction(problem.errors(columns)))
    return columns.numpy(), dataclasses.replace(result, value=value)


# The last problem is cached because the same problem, with the same `Workload` object, is
# usually solved twice: first for a draft, then for a plan.
_traced = functools.lru_cache(maxsize=1)(_Problem)
