"""Optimal banded strategies `C` with general columns.

arXiv:2405.15913, Problem 2.1 and section 3.1, with the O(n bands^2) recursion of
`analysis.gram_recursion` in place of Algorithm 2; without equal column norms it is the
problem of arXiv:2306.08153, Appendix B.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, Callable

import numpy as np
import tensorflow as tf

from tf_bandmf.analysis import gram_recursion
from tf_bandmf.files import configs
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

# Takes variables, and a function from errors to weights and an offset (see
# `Objective.support`); gives a lower bound on the objective, and the errors.
BoundFunction = Callable[
    [np.ndarray, "Callable[[np.ndarray], tuple[np.ndarray, float]]"],
    "tuple[float, np.ndarray]",
]

# Entries of C for which compiling by XLA pays, and the most bands.
_XLA_ENTRIES, _MOST_XLA_BANDS = range(2**15, 2**21), 64
_NAMED = (objectives.MEAN, objectives.MAX)


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """A parametrization of the feasible set, and the error on it.

    For column-normalized strategies the variables `y` are the entries below the diagonal,
    divided by the diagonal and by a scale `s_j` of the column: column `j` is
    `[1, s_j y_1j, s_j y_2j, ...] / norm`. Otherwise the variables are all entries, scaled
    such that the squared norms of the columns `i, i + b, ...` sum to 1. Each
    parametrization was the faster of the two on its problem.

    Attributes:
      workload: A.
      bands: of C.
      separation: b, or None for column-normalized strategies.
      scale: `s_j`, shape [n]; used only for column-normalized strategies.
    """

    workload: Workload
    bands: int
    separation: int | None
    scale: np.ndarray

    def columns(self, position: tf.Tensor) -> tf.Tensor:
        n = self.workload.num_steps
        columns = tf.reshape(position, [-1, n])
        if self.separation is None:
            columns *= self.scale
            columns = tf.concat([tf.ones([1, n], tf.float64), columns], axis=0)
        columns *= banded_matrices.inside(self.bands, n)
        squared = tf.reduce_sum(columns**2, axis=0)
        if self.separation is not None:
            epochs = -(-n // self.separation)
            missing = epochs * self.separation - n
            table = tf.reshape(tf.pad(squared, [[0, missing]]), [epochs, -1])
            squared = tf.tile(tf.reduce_sum(table, axis=0), [epochs])[:n]
        return columns * tf.math.rsqrt(squared)

    def position(self, columns: np.ndarray) -> np.ndarray:
        """Variables of given columns [bands, n] with a positive diagonal."""
        if self.separation is None:
            return (columns[1:] / columns[:1] / self.scale).reshape(-1)
        return (columns / np.linalg.norm(columns, axis=0)).reshape(-1)

    def errors(self, columns: tf.Tensor) -> tf.Tensor:
        rows = banded_matrices.times_inverse_workload(columns, self.workload)
        return gram_recursion.inverse_row_norms(rows)


def _column_scale(num_steps: int, objective: Objective) -> np.ndarray:
    """Factors of the columns, shape [n], that make second derivatives about equal.

    For the mean error, second derivatives fall like the square root of the number of
    steps that are left at a column, as measured for prefix sums and momentum.
    """
    if objective != objectives.MEAN:
        return np.ones(num_steps)
    return (num_steps / (num_steps - np.arange(num_steps))) ** 0.25


def _bound_function(problem: Problem) -> BoundFunction:
    """Returns a function for lower bounds on the objective of all feasible strategies."""

    def evaluate(position: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        columns = problem.columns(position)
        return problem.errors(columns), tf.norm(columns, axis=0)

    def gram_band(
        position: tf.Tensor, weights: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        columns = problem.columns(position)
        rows = banded_matrices.times_inverse_workload(columns, problem.workload)
        strategy = banded_matrices.rows_from_columns(columns)
        band = gram_recursion.doubly_filtered_band(strategy, rows, weights)
        return band, strategy, rows

    @functools.cache
    def compiled() -> tuple[Callable[..., Any], Callable[..., Any]]:
        # Concrete functions: otherwise TensorFlow warns of retracing after a few problems.
        position = tf.TensorSpec([_num_variables(problem)], tf.float64)
        weights = tf.TensorSpec([problem.workload.num_steps], tf.float64)
        errors = tf.function(evaluate, autograph=False)
        band = tf.function(gram_band, autograph=False)
        return (
            errors.get_concrete_function(position),
            band.get_concrete_function(position, weights),
        )

    def bound(
        position: np.ndarray,
        support: Callable[[np.ndarray], tuple[np.ndarray, float]],
    ) -> tuple[float, np.ndarray]:
        variables = tf.constant(position)
        compiled_errors, compiled_band = compiled()
        errors, norms = (x.numpy() for x in compiled_errors(variables))
        groups = problem.separation or problem.workload.num_steps
        weights, offset = support(errors)
        band, rows, product = (
            x.numpy() for x in compiled_band(variables, tf.constant(weights))
        )
        error = float(weights @ errors)
        at = certificate.Tangent(error, band, norms, groups, rows, product, weights)
        return certificate.lower_bound(at) + offset, errors

    return bound


def optimize(
    workload: Workload,
    objective: Objective,
    start: np.ndarray,
    separation: int | None,
    options: lbfgs.Options,
    is_certified: bool = True,
) -> tuple[np.ndarray, OptimizationResult]:
    """The banded strategy with the smallest objective of the per-step errors.

    Args:
      workload: A.
      objective: of the per-step squared errors at unit sensitivity.
      start: columns of a strategy, `start[i, j] = C[j + i, j]`, shape [bands, n], with
        a positive diagonal.
      separation: None for columns of norm 1; b for `sum over columns i, i + b, ... of
        squared norms = 1`.
      options: when to stop.
      is_certified: whether to certify the gap, which takes as long as a dozen iterations.

    Returns:
      The columns, shape [bands, n], and the result, with a certified gap if the objective
      is convex and `is_certified` is set. The result's value is the objective at
      sensitivity 1 per column, or per group of columns.
    """
    config = configs.dumps(workload.to_config())
    # A caller's own function is traced again: it may give other values the next time.
    trace = _traced if objective in _NAMED else _traced.__wrapped__
    traced = trace(config, objective, len(start), separation)
    problem, is_certified = traced.problem, is_certified and objective.is_convex
    position = problem.position(start)
    minimize = functools.partial(
        traced.minimizer.minimize, scale=float(workload.num_steps), options=options
    )
    # Every lower bound that was found along the way holds: the largest one counts.
    best = -math.inf

    def errors_of(at: np.ndarray) -> np.ndarray:
        return np.asarray(problem.errors(problem.columns(tf.constant(at))))

    def gap(at: np.ndarray) -> float:
        nonlocal best
        bound, errors = traced.bound(at, objective.support)
        best = max(best, bound)
        # Rounding may push the bound above the value at a perfect optimum.
        return max(0.0, 1.0 - best / float(objective.reduction(tf.constant(errors))))

    def weighted(at: np.ndarray, weights: np.ndarray) -> tuple[float, np.ndarray]:
        return traced.bound(at, lambda errors: (weights, 0.0))

    if traced.maximum is None:
        result = minimize(position, gap=gap if is_certified else None)
    else:
        bound = weighted if is_certified else None
        result = maximum.minimize(
            traced.maximum, minimize, errors_of, bound, position, options
        )
    columns = problem.columns(tf.constant(result.position))
    value = float(objective.reduction(problem.errors(columns)))
    return columns.numpy(), dataclasses.replace(result, value=value)


@dataclasses.dataclass(frozen=True, eq=False)
class _Traced:
    """A problem and its functions, compiled.

    Attributes:
      problem: the parametrization and its errors.
      bound: see `_bound_function`.
      minimizer: of the objective.
      maximum: what the minimizer minimizes if the objective is the maximum of the errors.
    """

    problem: Problem
    bound: BoundFunction
    minimizer: lbfgs.Minimizer
    maximum: maximum.SmoothMaximum | None


# The last problem is kept, since a plan follows the draft of the same problem.
@functools.lru_cache(maxsize=1)
def _traced(
    config: str, objective: Objective, bands: int, separation: int | None
) -> _Traced:
    """The functions that `optimize` evaluates, for a workload's configuration."""
    workload = Workload.from_config(configs.loads(config))
    n = workload.num_steps
    scale = _column_scale(n, objective)
    problem = Problem(workload, bands, separation, scale)
    smooth = maximum.SmoothMaximum(n) if objective == objectives.MAX else None
    reduction = smooth or objective.reduction

    def log_loss(position: tf.Tensor) -> tf.Tensor:
        return tf.math.log(reduction(problem.errors(problem.columns(position))))

    minimizer = lbfgs.Minimizer(
        log_loss, _num_variables(problem), _suits_xla(problem, objective)
    )
    return _Traced(problem, _bound_function(problem), minimizer, smooth)


def _suits_xla(problem: Problem, objective: Objective) -> bool:
    """Tells whether to compile the objective by XLA.

    Measured: 1.6 times as fast for 32 bands, slower for 128; 1.3 s to compile. A caller's
    own objective may contain operations that XLA does not compile.
    """
    if objective not in (objectives.MEAN, objectives.LAST, objectives.MAX):
        return False
    entries = problem.bands * problem.workload.num_steps
    return entries in _XLA_ENTRIES and problem.bands <= _MOST_XLA_BANDS


def _num_variables(problem: Problem) -> int:
    rows = problem.bands - (problem.separation is None)
    return rows * problem.workload.num_steps
