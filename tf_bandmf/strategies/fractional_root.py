"""gamma-BIFR: the banded inverse of a fractional power of the workload.

Source: Kalinin, Rehn, Andersson, Honkela, Lampert, "Beyond Square Roots: Explicit
Memory-Efficient Factorization for Multi-Epoch Private Learning", arXiv:2605.18379. With
two bands, gamma-BIFR is DP-lambda-CGD; with gamma = 1/2, it is BISR. With other values
of gamma, a few bands can correlate more of the noise than the same number of bands of
BISR.
"""

from __future__ import annotations

import dataclasses

from tf_bandmf import matrices
from tf_bandmf.matrices import power_series
from tf_bandmf.participation import Participation
from tf_bandmf.strategies import optimized
from tf_bandmf.strategies.base import Strategy
from tf_bandmf.strategies.one_parameter import with_best_fraction
from tf_bandmf.strategies.registry import Family, Option, register, with_best_bands
from tf_bandmf.workloads import Workload, check_workload


def bifr(
    workload: Workload, bands: int, gamma: float, column_normalized: bool = False
) -> Strategy:
    """Returns gamma-BIFR: the first `bands` diagonals of `C^-1 = A^(-gamma)`.

    The noise generator stores nothing and regenerates `bands - 1` earlier vectors at each
    step. The sensitivity follows from the theorems of `tf_bandmf.analysis.sensitivity`: for
    the prefix sum, every gamma gives a `C` without negative entries.

    Args:
      workload: A; a learning-rate schedule does not change the strategy.
      bands: p, number of diagonals of `C^-1`, 1 <= bands <= n.
      gamma: exponent in [0, 1); 0 is DP-SGD, 1/2 is BISR. With momentum and a large
        gamma, the entries of `C` grow without limit, which a large error reveals.
      column_normalized: scale the columns of `C` to norm 1.

    Raises:
      ValueError: if an argument is out of range.
    """
    check_workload(workload)
    bands = optimized.check_bands(bands, workload.num_steps)
    if not 0.0 <= gamma < 1.0:
        raise ValueError(
            f"gamma must be in [0, 1), found {gamma}. 0 is DP-SGD; 1 would be the "
            f"inverse of the workload."
        )
    # With decay alpha and momentum beta, the series is (1 - alpha x)^gamma (1 - beta
    # x)^gamma.
    coefficients = power_series.power(workload.inverse_coefficients, gamma, bands)
    inverse = matrices.ToeplitzBanded(coefficients, workload.num_steps)
    parameters = {"bands": bands, "gamma": float(gamma)}
    strategy = Strategy("bifr", matrices.Inverse(inverse), parameters)
    return strategy.normalize_columns() if column_normalized else strategy


def optimized_bifr(
    workload: Workload,
    participation: Participation,
    bands: int | None = None,
    gamma: float | None = None,
    column_normalized: bool = False,
    objective: str = "mean",
) -> Strategy:
    """Returns gamma-BIFR with the smallest error without amplification.

    Args:
      workload: A.
      participation: determines the sensitivity.
      bands: p, number of diagonals of `C^-1`, 1 <= bands <= n; None for the best power of
        two.
      gamma: see `bifr`; None for the best.
      column_normalized: see `bifr`.
      objective: "mean" for the RMSE, "max" for the MaxSE.

    Raises:
      ValueError: if an argument is out of range.
    """
    check_workload(workload)

    def of_bands(workload: Workload, bands: int, column_normalized: bool) -> Strategy:
        def build(gamma: float) -> Strategy:
            return bifr(workload, bands, gamma, column_normalized)

        if gamma is not None:
            return build(gamma)
        best = with_best_fraction(build, workload, participation, objective)
        # Rounding gamma to four digits keeps names short, and hardly changes the error,
        # which is near its minimum.
        strategy = build(min(round(best.parameters["gamma"], 4), 0.9999))
        return dataclasses.replace(strategy, diagnostics=best.diagnostics)

    best_of = with_best_bands(of_bands)
    return best_of(workload, participation, bands, column_normalized)


register(
    Family(
        "bifr",
        optimized_bifr,
        (Option("bands"), Option("gamma", float)),
        auto=2,
        banded="inverse",
    )
)
