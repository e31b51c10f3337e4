"""Optimal banded strategies `C` with general columns.

arXiv:2405.15913, Problem 2.1 and section 3.1, with the O(n bands^2) recursion of
`analysis.gram_recursion` in place of Algorithm 2; without equal column norms it is the
problem of arXiv:2306.08153, Appendix B.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Callable

import numpy as np
import tensorflow as tf

from tf_bandmf.analysis import gram_recursion
from tf_bandmf.optimize import banded_matrices, certificate, lbfgs
from tf_bandmf.optimize.objectives import Objective
from tf_bandmf.optimize.result import OptimizationResult
from tf_bandmf.workloads import Workload


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """Charts of the feasible set, and the error on it.

    For column-normalized strategies the variables are the entries below the diagonal
    relative to the diagonal: column `j` is `[1, y_1j, y_2j, ...] / norm`. Otherwise
    they are all entries, scaled such that the squared norms of the columns `i, i + b,
    ...` sum to 1. Each chart was the faster one of the two on its problem.

    Attributes:
      workload: A.
      bands: of C.
      separation: b, or None for column-normalized strategies.
    """

    workload: Workload
    bands: int
    separation: int | None

    def columns(self, position: tf.Tensor) -> tf.Tensor:
        n = self.workload.num_steps
        columns = tf.reshape(position, [-1, n])
        if self.separation is None:
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
            return (columns[1:] / columns[:1]).reshape(-1)
        return (columns / np.linalg.norm(columns, axis=0)).reshape(-1)

    def errors(self, columns: tf.Tensor) -> tf.Tensor:
        rows = banded_matrices.times_inverse_workload(columns, self.workload)
        return gram_recursion.inverse_row_norms(rows)


def _gap_function(
    problem: Problem, objective: Objective
) -> Callable[[np.ndarray, int], float]:
    """Certified relative optimality gap at given variables among so many bands.

    No strategy with these bands is below a bound that was found once: the best counts,
    whichever variables and weights of the steps it came from.
    """
    best: dict[int, float] = {}

    def evaluate(position: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        columns = problem.columns(position)
        return problem.errors(columns), tf.norm(columns, axis=0)

    def gram_band(position: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        columns = problem.columns(position)
        rows = banded_matrices.times_inverse_workload(columns, problem.workload)
        strategy = banded_matrices.rows_from_columns(columns)
        return gram_recursion.doubly_filtered_band(strategy, rows, weights)

    # Concrete: TensorFlow would warn of retracing when several problems are solved.
    position_spec = tf.TensorSpec([_num_variables(problem)], tf.float64)
    weights_spec = tf.TensorSpec([problem.workload.num_steps], tf.float64)
    traced = tf.function(evaluate, autograph=False)
    compiled_errors = traced.get_concrete_function(position_spec)
    traced = tf.function(gram_band, autograph=False)
    compiled_band = traced.get_concrete_function(position_spec, weights_spec)

    def gap(position: np.ndarray, bands: int) -> float:
        variables = tf.constant(position)
        errors, norms = (x.numpy() for x in compiled_errors(variables))
        groups = problem.separation or problem.workload.num_steps
        for weights, offset in objective.supports(errors):
            band = compiled_band(variables, tf.constant(weights)).numpy()
            dual = certificate.dual_bound(band[:, :bands], norms, groups)
            bound = certificate.lower_bound(float(weights @ errors), dual) + offset
            best[bands] = max(bound, best.get(bands, bound))
        bound = best[bands]
        value = float(objective.reduction(tf.constant(errors)))
        # Rounding may push the bound above the value at a perfect optimum.
        return max(0.0, 1.0 - bound / value)

    return gap


def optimize(
    workload: Workload,
    objective: Objective,
    starts: Sequence[np.ndarray],
    separation: int | None,
    options: lbfgs.Options,
) -> list[tuple[np.ndarray, OptimizationResult]]:
    """The banded strategy with the smallest objective of the per-step errors.

    Args:
      workload: A.
      objective: of the per-step squared errors at unit sensitivity.
      starts: columns of a strategy, `start[i, j] = C[j + i, j]`, shape [bands, n], with
        a positive diagonal; for each number of bands that is wanted.
      separation: None for columns of norm 1; b for `sum over columns i, i + b, ... of
        squared norms = 1`.
      options: when to stop.

    Returns:
      For each start the columns, shape [bands, n], and the result with a certified gap
      if the objective is convex. The result's value is the objective at sensitivity 1
      per column, or per group of columns.
    """
    starts = list(starts)
    largest, n = max(len(start) for start in starts), workload.num_steps
    problem = Problem(workload, largest, separation)
    gap = _gap_function(problem, objective) if objective.is_convex else None
    # Strategies with fewer bands are those whose last diagonals stay 0.
    is_masked = len(starts) > 1
    inside = tf.Variable(
        tf.ones([_num_variables(problem) if is_masked else 1], tf.float64),
        trainable=False,
    )

    def minimizer(stage: Callable[[tf.Tensor], tf.Tensor]) -> lbfgs.Minimizer:
        def log_loss(position: tf.Tensor) -> tf.Tensor:
            position = position * inside if is_masked else position
            return tf.math.log(stage(problem.errors(problem.columns(position))))

        return lbfgs.Minimizer(log_loss, _num_variables(problem), options)

    minimizers = [minimizer(stage) for stage in objective.smooth_stages]
    found = []
    while starts:
        # A copy of the variables may take a gigabyte: keep no more than needed.
        start = starts.pop(0)
        bands = len(start)
        position = problem.position(np.pad(start, [(0, largest - bands), (0, 0)]))
        del start
        if is_masked:
            inside.assign(_first_diagonals(problem, bands))
        certify = None if gap is None else _among(gap, bands)
        for stage in minimizers:
            result = stage.minimize(position, float(n), certify)
            position = result.position
            certified = result.optimality_gap
            if certified is not None and certified <= options.gap_tolerance:
                break
        final = problem.columns(tf.constant(position))
        value = float(objective.reduction(problem.errors(final)))
        columns = final[:bands].numpy()
        found.append((columns, dataclasses.replace(result, value=value)))
    return found


def _among(
    gap: Callable[[np.ndarray, int], float], bands: int
) -> Callable[[np.ndarray], float]:
    return lambda position: gap(position, bands)


def _num_variables(problem: Problem) -> int:
    rows = problem.bands - (problem.separation is None)
    return rows * problem.workload.num_steps


def _first_diagonals(problem: Problem, bands: int) -> np.ndarray:
    """1 for variables of the first `bands` diagonals, else 0."""
    diagonals = np.arange(int(problem.separation is None), problem.bands)
    rows = (diagonals < bands).astype(np.float64)
    return np.repeat(rows, problem.workload.num_steps)
