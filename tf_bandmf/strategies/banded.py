"""BandMF: optimized banded strategies, whose columns may all differ.

These are the strategies of Choquette-Choo et al., "(Amplified) Banded Matrix
Factorization", arXiv:2306.08153, section 4 and Appendix B, in the parametrization of
McKenna, arXiv:2405.15913, section 3.1.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from tf_bandmf import matrices
from tf_bandmf.optimize.options import Options
from tf_bandmf.participation import FixedEpochOrder, MinSep, Participation
from tf_bandmf.strategies import optimized
from tf_bandmf.strategies.base import Strategy
from tf_bandmf.strategies.registry import Family, Option, Refinement, register
from tf_bandmf.strategies.toeplitz import optimized_toeplitz
from tf_bandmf.workloads import Workload, check_workload

if TYPE_CHECKING:
    from tf_bandmf.optimize.objectives import Objective, ObjectiveLike

# The stopping rules for drafts, which need about three correct digits of the error to
# compare strategies, and for plans, which need six digits.
_DRAFT = Options(max_iterations=40, decrease_tolerance=2e-4)
_PLAN = Options(decrease_tolerance=2e-7)
# For more than _MOST_AT_ONCE steps, the optimization starts from an extrapolation of
# the optimum for a quarter of the steps, if this quarter has at least _LEAST_PER_BAND
# steps per band. _START_GAP and _START_DECREASE are the tolerances for the optimization
# with a quarter of the steps.
_MOST_AT_ONCE, _LEAST_PER_BAND = 2**16, 64
_START_GAP, _START_DECREASE = 5e-3, 1e-7


def optimized_banded(
    workload: Workload,
    bands: int,
    *,
    objective: ObjectiveLike = "mean",
    column_normalized: bool = True,
    participation: Participation | None = None,
    start: Strategy | None = None,
    max_iterations: int = 500,
    gap_tolerance: float = 1e-5,
    gradient_tolerance: float = 1e-5,
    decrease_tolerance: float = 1e-9,
) -> Strategy:
    """Returns the banded `C` with the smallest error at sensitivity 1.

    If all columns have norm 1 (`column_normalized`), one strategy is optimal for every
    participation with a min separation of at least `bands`, because the sensitivity for
    k participations is `sqrt(k)` (arXiv:2306.08153, Theorem 2). Otherwise, the result
    is the best strategy for a fixed epoch order (arXiv:2306.08153, Appendix B). For
    this order, the error is slightly smaller than with columns of norm 1. For other
    participations with the same min separation, the error is slightly larger.

    The problem is convex in `C^T C`, which allows a certificate of optimality. The
    diagnostics contain:

    - `optimality_gap`: an upper bound on the relative gap between the objective, which
      is a squared error, and its minimum over a class of strategies. Strategies outside
      this class may be better. The bound and the true gap shrink approximately like the
      square of the gradient. If the error of some step has no weight, as for the
      objective "last", the bound shrinks only like the gradient.
    - `optimal_among`: the class, such as "4 bands, columns of equal norm".
    - `converged`: True if the gap, the gradient or the decrease met its tolerance.
      `message` tells which of the three did.

    Args:
      workload: the workload. A learning-rate schedule is taken into account.
      bands: number of diagonals of `C`, 1 <= bands <= n.
      objective: "mean" for the RMSE; "max" for the MaxSE, which p-norms of growing
        order approximate; "last" for the error of the final model (no invertible `C`
        attains the infimum, so the optimization stops without convergence); or a
        differentiable function of the per-step squared errors. If this function is
        convex, pass it as an `Objective` to get a gap.
      column_normalized: True if all columns must have norm 1.
      participation: required if `column_normalized` is False: a `FixedEpochOrder` with
        at least as many steps per epoch as `C` has bands.
      start: banded strategy from which the optimization starts, with any number of
        bands. The default is the optimal banded Toeplitz strategy. For the mean error
        of prefix sums of more than 65,536 steps, the default is an extrapolation of the
        optimum for a quarter of the steps.
      max_iterations: maximum number of L-BFGS iterations per stage.
      gap_tolerance: a result counts as converged if its certified relative gap is at
        most this value.
      gradient_tolerance: a result counts as converged if no derivative of
        `n log(objective)` exceeds this value.
      decrease_tolerance: a result counts as converged if the objective decreases by at
        most this fraction in 20 iterations. Use a larger tolerance for very large
        problems.

    Returns:
      The strategy. If `column_normalized` is False, it has sensitivity 1.

    Raises:
      ValueError: if an argument is out of range, or if the participation does not fit.
    """
    check_workload(workload)
    options = Options(
        max_iterations=max_iterations,
        gap_tolerance=gap_tolerance,
        gradient_tolerance=gradient_tolerance,
        decrease_tolerance=decrease_tolerance,
    )
    bands = optimized.check_bands(bands, workload.num_steps)
    separation = None
    if not column_normalized:
        separation = _epoch(participation, bands, workload.num_steps)
    return _optimized(workload, bands, objective, options, separation, start)


def _optimized(
    workload: Workload,
    bands: int,
    objective: ObjectiveLike,
    options: Options,
    separation: int | None = None,
    start: Strategy | None = None,
    is_certified: bool = True,
) -> Strategy:
    """Implements `optimized_banded`.

    `separation` is the number of steps per epoch, or None for columns of norm 1.
    """
    from tf_bandmf.optimize import banded as problem
    from tf_bandmf.optimize import banded_matrices, objectives

    goal = objectives.resolve(objective)
    if start is None:
        columns = _default_columns(
            workload, bands, goal, separation, options, is_certified
        )
    else:
        columns = _start_columns(workload, start, bands)
    columns, result = problem.optimize(
        workload, goal, columns, separation, options, is_certified
    )
    rows = banded_matrices.rows_from_columns(columns).numpy()
    norms = ", columns of equal norm" if separation is None else ""
    return Strategy(
        "banded",
        matrices.RowBanded(rows),
        {"bands": bands, "column_normalized": separation is None},
        {
            **result.diagnostics(goal.name),
            "optimal_among": f"{bands} band{'s' * (bands > 1)}{norms}",
        },
    )


def _start_columns(workload: Workload, start: Strategy, bands: int) -> np.ndarray:
    """Returns the columns of `start`, cut or padded with zeros to shape [bands, n]."""
    n = workload.num_steps
    if start.num_steps != n:
        raise ValueError(
            f"start.num_steps must be {n}, as in the workload, found {start.num_steps}."
        )
    if start.is_inverse_banded:
        raise ValueError(
            f"The argument start must be a strategy with a banded C, but in the "
            f"strategy {start.family!r}, only the inverse of C is banded."
        )
    rows = start.matrix.as_rows()
    return optimized.fit_bands(matrices.columns_from_rows(rows), bands)


def _epoch(participation: Participation | None, bands: int, num_steps: int) -> int:
    """Returns the number of steps per epoch of a `FixedEpochOrder`.

    Raises:
      ValueError: if the participation has another type, if an epoch has fewer than
        `bands` steps, or if the participation does not have `num_steps` steps.
    """
    if not isinstance(participation, FixedEpochOrder):
        raise ValueError(
            f"participation must be a FixedEpochOrder if column_normalized is False, "
            f"found {participation!r}."
        )
    participation.validate_num_steps(num_steps)
    if bands > participation.separation():
        raise ValueError(
            f"If column_normalized is False, bands must be at most the number of steps "
            f"per epoch, {participation.separation()}, found {bands}."
        )
    return participation.separation()


def _default_columns(
    workload: Workload,
    bands: int,
    objective: Objective,
    separation: int | None,
    options: Options,
    is_certified: bool,
) -> np.ndarray:
    """Returns the columns of the default starting point, shape [bands, n].

    The default starting point is the optimal Toeplitz strategy for the workload without
    its learning rates. For prefix sums of very many steps, it is an extrapolation of
    the optimum for fewer steps. For workloads with momentum 0.9 and up to 2^16 steps,
    such an extrapolation was no better than the Toeplitz strategy in measurements.
    """
    from tf_bandmf.optimize import continuation, objectives

    n = workload.num_steps
    fewer = -(-n // 4)
    if (
        _is_prefix_sum(workload)
        and separation is None
        and objective == objectives.MEAN
        and n > _MOST_AT_ONCE
        and fewer >= _LEAST_PER_BAND * bands
    ):
        options = dataclasses.replace(
            options,
            gap_tolerance=max(options.gap_tolerance, _START_GAP),
            decrease_tolerance=max(options.decrease_tolerance, _START_DECREASE),
        )
        shorter = dataclasses.replace(workload, num_steps=fewer)
        strategy = _optimized(
            shorter, bands, objective, options, is_certified=is_certified
        )
        return continuation.continued(_start_columns(shorter, strategy, bands), n)
    plain = dataclasses.replace(workload, learning_rates=None)
    once = MinSep(n, 1)
    start = optimized_toeplitz(plain, once, bands, gradient_tolerance=1e-5)
    return _start_columns(workload, start, bands)


def _is_prefix_sum(workload: Workload) -> bool:
    coefficients = workload.inverse_coefficients
    return workload.learning_rates is None and np.array_equal(coefficients, [1.0, -1.0])


def _build(
    workload: Workload,
    participation: Participation,
    bands: int,
    objective: str = "mean",
    is_draft: bool = False,
) -> Strategy:
    check_workload(workload)
    bands = optimized.check_bands(bands, workload.num_steps)
    options = _DRAFT if is_draft else _PLAN
    return _optimized(workload, bands, objective, options, is_certified=not is_draft)


register(
    Family(
        "banded",
        _build,
        (Option("bands"),),
        auto=8,
        banded="C",
        is_optimized=True,
        refinement=Refinement("toeplitz", largest_work=2**22),
    )
)
