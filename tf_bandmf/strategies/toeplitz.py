"""Optimized banded Toeplitz strategies: a few coefficients for any number of steps.

McKenna, "Scaling up the Banded Matrix Factorization Mechanism for Differentially
Private ML", arXiv:2405.15913, section 3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tf_bandmf import matrices
from tf_bandmf.optimize import series_problem
from tf_bandmf.optimize.options import Options
from tf_bandmf.participation import Participation
from tf_bandmf.strategies import optimized
from tf_bandmf.strategies.base import Strategy
from tf_bandmf.strategies.registry import Family, Option, register
from tf_bandmf.strategies.square_root import square_root_coefficients
from tf_bandmf.workloads import Workload, check_workload

if TYPE_CHECKING:
    from tf_bandmf.optimize.objectives import ObjectiveLike

_GRADIENT_TOLERANCE = 1e-7


def optimized_toeplitz(
    workload: Workload,
    participation: Participation,
    bands: int,
    *,
    objective: ObjectiveLike = "mean",
    column_normalized: bool = False,
    start: Strategy | None = None,
    max_iterations: int = 500,
    gradient_tolerance: float = _GRADIENT_TOLERANCE,
    progress: bool | None = None,
) -> Strategy:
    """The banded Toeplitz `C` with the smallest error at sensitivity 1.

    With at most b bands the minimized sensitivity is exact. More bands are optimized as
    if b were their number, as in production (arXiv:2306.08153, section 6);
    `Strategy.sensitivity` then gives the sensitivity under the real b, a bound where no
    theorem applies.

    Args:
      workload: A; a learning-rate schedule is taken into account.
      participation: gives b and k.
      bands: number of diagonals of `C`, 1 <= bands <= n.
      objective: "mean" for the RMSE, "max" for the MaxSE, "last" for the final model,
        or a differentiable function of the per-step squared errors.
      column_normalized: scale the columns of the result to norm 1, after the
        optimization, as arXiv:2405.15913 recommends.
      start: a Toeplitz strategy to start from, with any number of bands; by default the
        square root of the workload.
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
    check_workload(workload)
    options = Options(
        max_iterations=max_iterations,
        gradient_tolerance=gradient_tolerance,
        progress=progress,
    )
    (found,) = _optimized(workload, participation, [bands], objective, start, options)
    return found.normalize_columns() if column_normalized else found


def _optimized(
    workload: Workload,
    participation: Participation,
    bands: Sequence[int],
    objective: ObjectiveLike,
    start: Strategy | None,
    options: Options,
) -> list[Strategy]:
    """For each number of bands, together in a fraction of the time.

    Where TensorFlow is needed (a learning-rate schedule, an objective of one's own),
    tracing takes longer than optimizing: it is done once for all. Several numbers of
    bands must not exceed the separation.
    """
    n = workload.num_steps
    counts = [optimized.check_bands(count, n) for count in bands]
    participation.validate_num_steps(n)
    separation = max(participation.separation(), *counts)
    if len(counts) > 1 and separation > participation.separation():
        raise ValueError(
            f"Several numbers of bands must be <= the separation "
            f"{participation.separation()}, found {max(counts)}."
        )
    starts = []
    for count in counts:
        initial = optimized.toeplitz_start(start, count, n, inverse=False)
        if initial is None:
            initial = square_root_coefficients(workload, count)
        starts.append(initial)
    participations = min(participation.participations(n), -(-n // separation))
    name = series_problem.named_objective(workload, objective)
    if name is not None:
        series = series_problem.SeriesProblem(
            workload, name, separation, participations, inverse=False
        )
        limits = options.max_iterations, options.gradient_tolerance
        found = [series.optimize(initial, *limits) for initial in starts]
    else:
        from tf_bandmf.optimize import objectives
        from tf_bandmf.optimize import toeplitz as problem

        goal = objectives.resolve(objective, errors_increase=workload.is_toeplitz)
        name = goal.name
        found = problem.optimize(
            workload, goal, starts, separation, participations, options
        )
    return [
        Strategy(
            "toeplitz",
            matrices.ToeplitzBanded(coefficients, n),
            {"bands": count},
            optimized.diagnostics(name, result),
        )
        for count, (coefficients, result) in zip(counts, found)
    ]


register(
    Family(
        "toeplitz",
        optimized.builder(optimized_toeplitz),
        "C banded Toeplitz, optimized",
        Option("bands"),
        auto=5,
        gains_by_bands=True,
        is_banded=True,
        is_optimized=True,
    )
)
