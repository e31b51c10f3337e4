"""BandInvMF: strategies whose inverse is banded, with optimized coefficients.

Kalinin, McKenna, Upadhyay, Lampert, "Back to Square Roots", arXiv:2505.12128, section 5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf_bandmf import matrices
from tf_bandmf.participation import Participation
from tf_bandmf.strategies import optimized
from tf_bandmf.strategies.base import Strategy
from tf_bandmf.strategies.registry import Family, Option, default_bands, register
from tf_bandmf.strategies.square_root import inverse_square_root_coefficients
from tf_bandmf.workloads import Workload

if TYPE_CHECKING:
    from tf_bandmf.optimize.objectives import ObjectiveLike


def optimized_banded_inverse(
    workload: Workload,
    participation: Participation,
    bands: int,
    *,
    objective: ObjectiveLike = "mean",
    column_normalized: bool = False,
    start: Strategy | None = None,
    max_iterations: int = 500,
    gradient_tolerance: float = 1e-7,
    progress: bool | None = None,
) -> Strategy:
    """The Toeplitz `C` with banded inverse that has the smallest error.

    The noise generator keeps nothing and generates `bands - 1` earlier vectors again at
    each step. The minimized sensitivity is that of the columns 0, b, 2b, ..., exact
    if `C` is non-negative and non-increasing, as it was observed to be;
    `Strategy.sensitivity` checks that on the result and otherwise reports a bound.

    Args:
      workload: A; a learning-rate schedule is taken into account.
      participation: gives b and k.
      bands: p, number of diagonals of `C^-1`, 1 <= bands <= n.
      objective: "mean" for the RMSE, "max" for the MaxSE, "last" for the final model,
        or a differentiable function of the per-step squared errors.
      column_normalized: scale the columns of `C` to norm 1, after the optimization.
      start: a strategy with a banded Toeplitz inverse to start from, with any number
        of bands; by default BISR.
      max_iterations: of L-BFGS.
      gradient_tolerance: converged when no derivative of the logarithm of the squared
        error exceeds this.
      progress: True for a progress bar on stderr, False for none, None for one that
        appears on a terminal after two seconds.

    Returns:
      The strategy; its diagnostics say whether the optimizer converged.

    Raises:
      ValueError: if an argument is out of range.
    """
    from tf_bandmf.optimize import lbfgs, objectives
    from tf_bandmf.optimize import toeplitz as problem

    n = workload.num_steps
    bands = optimized.check_bands(bands, n)
    participation.validate_num_steps(n)
    goal = objectives.resolve(objective, errors_increase=workload.is_toeplitz)
    initial = optimized.toeplitz_start(start, bands, n, inverse=True)
    if initial is None:
        initial = inverse_square_root_coefficients(workload, bands)
    options = lbfgs.Options(
        max_iterations=max_iterations,
        gradient_tolerance=gradient_tolerance,
        progress=progress,
    )
    ((coefficients, result),) = problem.optimize(
        workload,
        goal,
        [initial],
        participation.separation(),
        participation.participations(n),
        options,
        inverse=True,
    )
    matrix = matrices.Inverse(matrices.ToeplitzBanded(coefficients, n))
    strategy = Strategy(
        "bandinv",
        matrix,
        {"bands": bands},
        optimized.diagnostics(goal.name, result),
    )
    return strategy.normalize_columns() if column_normalized else strategy


def _build(
    workload: Workload,
    participation: Participation,
    bands: int | None = None,
    column_normalized: bool = False,
    objective: str = "mean",
) -> Strategy:
    return optimized_banded_inverse(
        workload,
        participation,
        default_bands(workload, participation) if bands is None else bands,
        objective=objective,
        column_normalized=column_normalized,
    )


register(
    Family(
        "bandinv",
        _build,
        "C^-1 banded, optimized for the separation",
        Option("bands", typical="4"),
        auto=3,
        gains_by_bands=True,
        has_banded_inverse=True,
    )
)
