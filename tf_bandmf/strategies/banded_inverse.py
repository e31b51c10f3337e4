"""BandInvMF: strategies whose inverse is banded, with optimized coefficients.

Kalinin, McKenna, Upadhyay, Lampert, "Back to Square Roots", arXiv:2505.12128, section 5.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Callable

import numpy as np

from tf_bandmf import matrices
from tf_bandmf.optimize import series_problem
from tf_bandmf.participation import Participation
from tf_bandmf.strategies import optimized
from tf_bandmf.strategies.base import Strategy
from tf_bandmf.strategies.registry import Family, Option, register
from tf_bandmf.strategies.square_root import inverse_square_root_coefficients
from tf_bandmf.workloads import Workload, check_workload

if TYPE_CHECKING:
    from tf_bandmf.optimize.objectives import ObjectiveLike

# On increases of the first column of `C`, one after the other.
_PENALTIES = (1e2, 1e4)


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

    The noise generator keeps nothing and regenerates `bands - 1` earlier vectors at
    each step. The minimized sensitivity is that of the columns 0, b, 2b, ..., exact if
    `C` is non-negative and non-increasing; `Strategy.sensitivity` checks this on the
    result. With very many bands, `C` has small negative entries, and the formula is too
    small. Then the sensitivity under a fixed epoch order is still exact: the largest
    over the b patterns, each by its Gram matrix (`analysis.vector_contributions`).
    Under min-separation it is a bound: there are too many patterns to check each, the
    leftmost one need not be the worst, and the Gram matrix has no bands that a dynamic
    program could follow. The fixed order's value is a lower bound on it.

    Args:
      workload: A; a learning-rate schedule is taken into account.
      participation: gives b and k.
      bands: p, number of diagonals of `C^-1`, 1 <= bands <= n.
      objective: "mean" for the RMSE, "max" for the MaxSE, "last" for the final model,
        or a differentiable function of the per-step squared errors.
      column_normalized: scale the columns of `C` to norm 1, after the optimization.
      start: a strategy with a banded Toeplitz inverse to start from, with any number of
        bands; by default BISR, or, if that leads to no exact sensitivity, the optimum
        with half as many bands. The result has fewer bands than requested if more were
        found to be worse.
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
    n = workload.num_steps
    bands = optimized.check_bands(bands, n)
    participation.validate_num_steps(n)
    initial = optimized.toeplitz_start(start, bands, n, inverse=True)
    search = _Search(
        workload, participation, objective, max_iterations, gradient_tolerance, progress
    )
    if initial is not None:
        found = search.from_start(initial)
    else:
        found = search.with_continuation(bands)
    return found.normalize_columns() if column_normalized else found


class _Search:
    """Optimizations of one problem with different numbers of bands."""

    def __init__(
        self,
        workload: Workload,
        participation: Participation,
        objective: ObjectiveLike,
        max_iterations: int,
        gradient_tolerance: float,
        progress: bool | None,
    ) -> None:
        self._workload, self._participation = workload, participation
        self._limits = max_iterations, gradient_tolerance
        n = workload.num_steps
        self._rates = participation.separation(), participation.participations(n)
        name = series_problem.named_objective(workload, objective)
        self._series: series_problem.SeriesProblem | None = None
        self._reduction: Callable[[np.ndarray], Any]
        if name is not None:
            self.objective = name
            self._series = series_problem.SeriesProblem(
                workload, name, *self._rates, inverse=True
            )
            self._reduction = np.mean if name == "mean" else np.max
            return
        from tf_bandmf.optimize import lbfgs, objectives

        self._goal = objectives.resolve(objective, errors_increase=workload.is_toeplitz)
        self.objective, self._reduction = self._goal.name, self._goal.reduction
        self._options = lbfgs.Options(
            max_iterations=max_iterations,
            gradient_tolerance=gradient_tolerance,
            progress=progress,
        )

    def with_continuation(self, bands: int) -> Strategy:
        """From few bands to many, and the best of all on the way.

        With many bands and participations the landscape has regions in which the minimized
        norm is no longer the sensitivity (arXiv:2601.22334, Theorem 1, does not hold). Each
        number of bands is optimized from BISR. If that does not converge, or the
        sensitivity is only a bound, it is optimized once more from the optimum of half as
        many bands, with a penalty on what voids the theorem; if that does not help, fewer
        bands stay.
        """
        best = self.from_start(inverse_square_root_coefficients(self._workload, bands))
        if bands <= 2 or self._is_sound(best):
            return best
        fewer = self.with_continuation(bands // 2)
        candidates = [fewer, best]
        start = _coefficients(fewer)
        for penalty in (0.0,) if self._series is None else _PENALTIES:
            found = self.from_start(optimized.fit_bands(start, bands), penalty)
            candidates.append(found)
            start = _coefficients(found)
        return min(candidates, key=self._error)

    def from_start(self, initial: np.ndarray, penalty: float = 0.0) -> Strategy:
        n = self._workload.num_steps
        if self._series is not None:
            coefficients, result = self._series.optimize(
                initial, *self._limits, penalty
            )
        else:
            from tf_bandmf.optimize import toeplitz as problem

            ((coefficients, result),) = problem.optimize(
                self._workload,
                self._goal,
                [initial],
                *self._rates,
                self._options,
                inverse=True,
            )
        return Strategy(
            "bandinv",
            matrices.Inverse(matrices.ToeplitzBanded(coefficients, n)),
            {"bands": coefficients.size},
            optimized.diagnostics(self.objective, result),
        )

    def _is_sound(self, found: Strategy) -> bool:
        is_exact = found.sensitivity(self._participation).is_exact
        return is_exact and bool(found.diagnostics["converged"])

    def _error(self, found: Strategy) -> float:
        """The objective at the sensitivity, or the bound on it, that will be paid."""
        errors = found.per_step_squared_error(self._workload)
        squared = found.sensitivity(self._participation).value ** 2
        value = float(self._reduction(errors)) * squared
        return value if math.isfinite(value) else math.inf


def _coefficients(strategy: Strategy) -> np.ndarray:
    core = strategy.core
    assert isinstance(core, matrices.Inverse)
    assert isinstance(core.inner, matrices.ToeplitzBanded)
    return core.inner.coefficients


register(
    Family(
        "bandinv",
        optimized.builder(optimized_banded_inverse),
        "C^-1 banded, optimized for the separation",
        Option("bands", typical="4"),
        auto=3,
        gains_by_bands=True,
        has_banded_inverse=True,
        is_optimized=True,
    )
)
