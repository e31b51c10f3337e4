"""BandMF: optimized banded strategies with general columns.

These are the strategies of Choquette-Choo et al., "(Amplified) Banded Matrix
Factorization", arXiv:2306.08153, section 4 and Appendix B, in the parametrization of
McKenna, arXiv:2405.15913, section 3.1.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from tf_bandmf import matrices
from tf_bandmf.accounting.checks import check_word
from tf_bandmf.optimize.options import Options
from tf_bandmf.participation import MinSep, Participation
from tf_bandmf.strategies import optimized
from tf_bandmf.strategies.base import Strategy
from tf_bandmf.strategies.registry import Family, Option, Refinement, register
from tf_bandmf.strategies.toeplitz import optimized_toeplitz
from tf_bandmf.workloads import Workload, check_workload

if TYPE_CHECKING:
    from tf_bandmf.optimize.result import OptimizationResult

# The stopping rules: the error needs about three correct digits to compare strategies,
# and six for a plan.
_DRAFT = Options(max_iterations=40, decrease_tolerance=2e-4)
_PLAN = Options(decrease_tolerance=2e-7)
# For more than _MOST_AT_ONCE steps, the starting point is the optimum for a quarter of
# the steps, to the precision below, if this quarter has at least _LEAST_PER_BAND steps
# per band.
_MOST_AT_ONCE, _LEAST_PER_BAND = 2**16, 64
_START_GAP, _START_DECREASE = 5e-3, 1e-7


def optimized_banded(
    workload: Workload,
    participation: Participation,
    bands: int,
    *,
    objective: str = "mean",
    is_draft: bool = False,
) -> Strategy:
    """Returns the banded `C` with the smallest error at sensitivity 1, with a certificate.

    All columns have norm 1. Then one strategy is optimal for every participation with a
    min separation of at least `bands`: with k participations, `sens(C) = sqrt(k)`
    (arXiv:2306.08153, Theorem 2).

    The problem is convex in `C^T C`. The diagnostics contain the certified
    `optimality_gap`: no other strategy with these bands and constraints (the class
    `optimal_among`) has an objective (a squared error) that is smaller by more than this
    fraction. Strategies outside the class, with columns of other norms, may be better. The
    certified gap is at least the true gap. Both shrink approximately like the square of the
    gradient. `converged` is True if the gap, the gradient or the decrease met its
    tolerance, and `message` tells which.

    Args:
      workload: A; a learning-rate schedule is taken into account.
      participation: participation of the run. The result does not depend on it.
      bands: number of diagonals of `C`, 1 <= bands <= n.
      objective: "mean" for the RMSE; "max" for the MaxSE, by p-norms of growing order.
      is_draft: True to stop early, without a certificate: to about three correct digits of
        the error, instead of six.

    Returns:
      The strategy.

    Raises:
      ValueError: if an argument is out of range.
    """
    check_workload(workload)
    check_word("objective", objective, ("mean", "max"))
    bands = optimized.check_bands(bands, workload.num_steps)
    options = _DRAFT if is_draft else _PLAN
    columns, result = optimal_columns(workload, bands, objective, options, not is_draft)
    from tf_bandmf.optimize import banded_matrices

    rows = banded_matrices.rows_from_columns(columns).numpy()
    return Strategy(
        "banded",
        matrices.RowBanded(rows),
        {"bands": bands, "column_normalized": True},
        {
            **result.diagnostics(objective),
            "optimal_among": f"{bands} band{'s' * (bands > 1)}, columns of equal norm",
        },
    )


def optimal_columns(
    workload: Workload, bands: int, objective: str, options: Options, is_certified: bool
) -> tuple[np.ndarray, OptimizationResult]:
    """Returns the optimal columns [bands, n], from the default start, and the result."""
    from tf_bandmf.optimize import banded as problem

    start = _default_columns(workload, bands, objective, options, is_certified)
    return problem.optimize(workload, objective, start, options, is_certified)


def _default_columns(
    workload: Workload,
    bands: int,
    objective: str,
    options: Options,
    is_certified: bool,
) -> np.ndarray:
    """Returns the columns [bands, n] of the default start.

    The default start is the optimal Toeplitz strategy for the workload without its
    learning rates. For prefix sums of very many steps, it is an extrapolation of the
    optimum for fewer steps. With momentum 0.9, an extrapolation was no better than the
    Toeplitz strategy in measurements up to 2^16 steps.
    """
    from tf_bandmf.optimize import continuation

    n = workload.num_steps
    fewer = -(-n // 4)
    if (
        _is_prefix_sum(workload)
        and objective == "mean"
        and n > _MOST_AT_ONCE
        and fewer >= _LEAST_PER_BAND * bands
    ):
        options = dataclasses.replace(
            options,
            gap_tolerance=max(options.gap_tolerance, _START_GAP),
            decrease_tolerance=max(options.decrease_tolerance, _START_DECREASE),
        )
        shorter = dataclasses.replace(workload, num_steps=fewer)
        columns, _ = optimal_columns(shorter, bands, objective, options, is_certified)
        return continuation.continued(columns, n)
    plain = dataclasses.replace(workload, learning_rates=None)
    once = MinSep(n, 1)
    start = optimized_toeplitz(plain, once, bands, gradient_tolerance=1e-5)
    return matrices.columns_from_rows(start.matrix.as_rows())


def _is_prefix_sum(workload: Workload) -> bool:
    coefficients = workload.inverse_coefficients
    return workload.learning_rates is None and np.array_equal(coefficients, [1.0, -1.0])


register(
    Family(
        "banded",
        optimized_banded,
        (Option("bands"),),
        auto=8,
        banded="C",
        is_optimized=True,
        refinement=Refinement("toeplitz", largest_work=2**22),
    )
)
