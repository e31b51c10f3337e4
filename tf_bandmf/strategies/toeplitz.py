"""Optimized banded Toeplitz strategies, which have one coefficient per band.

Source: McKenna, "Scaling up the Banded Matrix Factorization Mechanism for Differentially
Private ML", arXiv:2405.15913, section 3.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf_bandmf import matrices
from tf_bandmf.matrices import power_series
from tf_bandmf.optimize import toeplitz
from tf_bandmf.optimize.options import Options
from tf_bandmf.optimize.toeplitz import LEAST_DECREASE
from tf_bandmf.optimize.toeplitz_sensitivity import SquaredSensitivity
from tf_bandmf.participation import Participation
from tf_bandmf.strategies import optimized
from tf_bandmf.strategies.base import Strategy
from tf_bandmf.strategies.registry import Family, Option, register
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
    max_iterations: int = 500,
    gradient_tolerance: float = _GRADIENT_TOLERANCE,
) -> Strategy:
    """Returns the banded Toeplitz strategy with the smallest error at sensitivity 1.

    Let b be the min separation of the participation. With at most b bands, the function
    minimizes the error at the exact sensitivity. With more than b bands, it assumes a
    min separation that equals the number of bands, as in the production training of
    arXiv:2306.08153, section 6. `Strategy.sensitivity` of the result still returns the
    sensitivity for the actual b, or an upper bound if no theorem applies.

    Args:
      workload: the workload. A learning-rate schedule is taken into account.
      participation: participation that determines the min separation b and the maximum
        number of participations.
      bands: number of diagonals of the strategy matrix, from 1 to the number of steps.
      objective: "mean" for the RMSE, "max" for the MaxSE, "last" for the final model,
        or a differentiable function of the per-step squared errors.
      column_normalized: scale the columns of the result to norm 1, after the
        optimization, as arXiv:2405.15913 recommends.
      max_iterations: maximum number of L-BFGS iterations.
      gradient_tolerance: the optimization has converged if no derivative of the
        logarithm of the squared error has a magnitude above this value.

    Returns:
      The strategy, with convergence information in its diagnostics.

    Raises:
      ValueError: if an argument is out of range.
    """
    check_workload(workload)
    n = workload.num_steps
    bands = optimized.check_bands(bands, n)
    participation.validate_num_steps(n)
    separation = max(participation.separation(), bands)
    participations = min(participation.participations(n), -(-n // separation))
    coefficients, result, name, _ = toeplitz.optimize(
        workload,
        objective,
        power_series.power(workload.inverse_coefficients, -0.5, bands),
        SquaredSensitivity(n, separation, participations, fixed_order=False),
        Options(max_iterations, gradient_tolerance, decrease_tolerance=LEAST_DECREASE),
    )
    strategy = Strategy(
        "toeplitz",
        matrices.ToeplitzBanded(coefficients, n),
        {"bands": bands},
        result.diagnostics(name),
    )
    return strategy.normalize_columns() if column_normalized else strategy


register(
    Family(
        "toeplitz",
        optimized_toeplitz,
        (Option("bands"),),
        auto=5,
        banded="C",
        is_optimized=True,
    )
)
