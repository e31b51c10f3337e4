"""BandInvMF: strategies whose inverse is banded, with optimized coefficients.

These are the strategies of Kalinin, McKenna, Upadhyay, Lampert, "Back to Square Roots",
arXiv:2505.12128, section 5.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING

import numpy as np

from tf_bandmf import matrices
from tf_bandmf.matrices import power_series
from tf_bandmf.optimize import toeplitz
from tf_bandmf.optimize.options import Options
from tf_bandmf.optimize.toeplitz import DRAFT, LEAST_DECREASE
from tf_bandmf.optimize.toeplitz_sensitivity import SquaredSensitivity
from tf_bandmf.participation import Participation
from tf_bandmf.strategies import optimized
from tf_bandmf.strategies.base import Strategy
from tf_bandmf.strategies.registry import Family, Option, register
from tf_bandmf.workloads import Workload, check_workload

if TYPE_CHECKING:
    from tf_bandmf.optimize.objectives import ObjectiveLike
    from tf_bandmf.optimize.result import OptimizationResult


def optimized_banded_inverse(
    workload: Workload,
    participation: Participation,
    bands: int,
    *,
    objective: ObjectiveLike = "mean",
    column_normalized: bool = False,
    max_iterations: int = 500,
    gradient_tolerance: float = 1e-7,
    is_draft: bool = False,
) -> Strategy:
    """Returns the Toeplitz `C` with banded inverse that has the smallest error.

    The noise generator stores nothing and regenerates `bands - 1` earlier vectors at
    each step. The function minimizes the product of the error and the sensitivity. The
    result is never worse than the starting point, BISR. Let n be the number of
    steps, b the min separation, and k the maximum number of participations. The
    sensitivity is exact in each of these cases, and otherwise an upper bound:

    - `k = 1`
    - The first column of `C` has no negative entries and does not increase from row b
      on.
    - The participation is a fixed epoch order with `n k^2 <= 5,000,000`.

    Args:
      workload: the workload. A learning-rate schedule is taken into account.
      participation: participation that determines b and k.
      bands: p, number of diagonals of `C^-1`, 1 <= bands <= n.
      objective: "mean" for the RMSE, "max" for the MaxSE, "last" for the final model,
        or a differentiable function of the per-step squared errors.
      column_normalized: scale the columns of `C` to norm 1, after the optimization.
      max_iterations: maximum number of L-BFGS iterations.
      gradient_tolerance: a result counts as converged if no derivative of the logarithm
        of the squared error exceeds this value.
      is_draft: True to stop earlier, within about 0.3% of the minimum error.

    Returns:
      The strategy, with convergence information in its diagnostics.

    Raises:
      ValueError: if an argument is out of range.
    """
    check_workload(workload)
    n = workload.num_steps
    bands = optimized.check_bands(bands, n)
    participation.validate_num_steps(n)
    least = DRAFT if is_draft else LEAST_DECREASE
    options = Options(max_iterations, gradient_tolerance, decrease_tolerance=least)
    search = _Search(workload, participation, objective, options)
    strategy = search.with_continuation(bands)
    return strategy.normalize_columns() if column_normalized else strategy


class _Search:
    """The search for the coefficients of `C^-1` that minimize the error."""

    def __init__(
        self,
        workload: Workload,
        participation: Participation,
        objective: ObjectiveLike,
        options: Options,
    ) -> None:
        self._workload, self._participation = workload, participation
        # Sensitivities are cached because computing an upper bound can take seconds.
        self._sensitivity = functools.cache(lambda x: x.sensitivity(participation))
        self._objective, self._options = objective, options

    def with_continuation(self, bands: int) -> Strategy:
        """Returns the best result from one or two starting points.

        The first search starts from BISR. If it does not converge, or if the
        sensitivity of its result is only an upper bound, a second search starts from
        the optimum for half as many bands.
        """
        start = power_series.power(self._workload.inverse_coefficients, 0.5, bands)
        best = self.from_start(start)
        if bands <= 2 or self._is_sound(best):
            return best
        inverse = self.with_continuation(bands // 2).core.banded_inverse()
        start = inverse.distinct_rows()[0]  # type: ignore[union-attr]
        other = self.from_start(optimized.fit_bands(start, bands))
        return min(best, other, key=self._error)

    def from_start(self, initial: np.ndarray) -> Strategy:
        """Searches for better coefficients of `C^-1`, starting from given ones.

        Args:
          initial: coefficients of `C^-1` at the start of the search, shape [bands].

        Returns:
          The strategy with the best coefficients, which may be the initial ones.
        """
        use, n = self._participation, self._workload.num_steps
        sensitivity = SquaredSensitivity(
            n, use.separation(), use.participations(n), use.has_fixed_positions
        )
        coefficients, result, name, self._reduction = toeplitz.optimize(
            self._workload,
            self._objective,
            initial,
            sensitivity,
            self._options,
            inverse=True,
        )
        optimum = self._strategy(coefficients, result, name)
        unchanged = dataclasses.replace(
            result, converged=False, message="no improvement over the start"
        )
        start = self._strategy(initial / initial[0], unchanged, name)
        return min(optimum, start, key=self._error)

    def _strategy(
        self, coefficients: np.ndarray, result: OptimizationResult, name: str
    ) -> Strategy:
        return Strategy(
            "bandinv",
            matrices.Inverse(
                matrices.ToeplitzBanded(coefficients, self._workload.num_steps)
            ),
            {"bands": coefficients.size},
            result.diagnostics(name),
        )

    def _is_sound(self, strategy: Strategy) -> bool:
        return self._sensitivity(strategy).is_exact and bool(
            strategy.diagnostics["converged"]
        )

    def _error(self, strategy: Strategy) -> float:
        """Returns the objective times sensitivity^2 (or the bound on sensitivity^2)."""
        errors = strategy.per_step_squared_error(self._workload)
        value = float(self._reduction(errors)) * self._sensitivity(strategy).value ** 2
        return value if math.isfinite(value) else math.inf


register(
    Family(
        "bandinv",
        optimized_banded_inverse,
        (Option("bands"),),
        auto=3,
        banded="inverse",
        is_optimized=True,
    )
)
