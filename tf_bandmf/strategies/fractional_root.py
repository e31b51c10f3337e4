"""gamma-BIFR: strategies whose inverse is a banded fractional power of the workload.

Source: Kalinin, Rehn, Andersson, Honkela, Lampert, "Beyond Square Roots: Explicit
Memory-Efficient Factorization for Multi-Epoch Private Learning", arXiv:2605.18379. With
two bands, gamma-BIFR is DP-lambda-CGD; with gamma = 1/2, it is BISR. With other values
of gamma, a few bands can correlate the noise more strongly than the same number of
bands of BISR.
"""

from __future__ import annotations

import dataclasses

from tf_bandmf.participation import Participation
from tf_bandmf.strategies.base import Strategy
from tf_bandmf.strategies.one_parameter import with_best_fraction
from tf_bandmf.strategies.registry import Family, Option, register, with_best_bands
from tf_bandmf.strategies.square_root import of_power
from tf_bandmf.workloads import Workload, check_workload


def bifr(
    workload: Workload, bands: int, gamma: float, column_normalized: bool = False
) -> Strategy:
    """Returns the strategy whose `C^-1` is `A^(-gamma)`, cut to `bands` diagonals.

    The noise generator stores nothing and regenerates `bands - 1` earlier vectors at
    each step. `tf_bandmf.analysis.sensitivity` computes the sensitivity. For the prefix
    sum, `C` has no negative entries for any gamma.

    Args:
      workload: the workload, with the matrix A. A learning-rate schedule does not
        change the strategy.
      bands: p, number of diagonals of `C^-1`, 1 <= bands <= n.
      gamma: exponent in [0, 1); 0 is DP-SGD, 1/2 is BISR. With momentum and a large
        gamma, the entries of `C` grow with the number of steps, and the error is large.
      column_normalized: scale the columns of `C` to norm 1.

    Raises:
      ValueError: if an argument is out of range.
    """
    if not 0.0 <= gamma < 1.0:
        raise ValueError(
            f"gamma must be in [0, 1), found {gamma}. Use gamma = 0 for DP-SGD, and "
            f"gamma = 0.5 for BISR."
        )
    gamma = float(gamma)
    return of_power("bifr", workload, bands, -gamma, column_normalized, gamma=gamma)


def optimized_bifr(
    workload: Workload,
    participation: Participation,
    bands: int | None = None,
    gamma: float | None = None,
    column_normalized: bool = False,
    objective: str = "mean",
) -> Strategy:
    """Returns the gamma-BIFR strategy with the smallest error.

    The error is computed without amplification by sampling.

    Args:
      workload: the workload.
      participation: the participation, which determines the sensitivity.
      bands: p, number of diagonals of `C^-1`, 1 <= bands <= n; None for the best power
        of two.
      gamma: exponent in [0, 1): `C^-1` consists of the first diagonals of `A^(-gamma)`.
        None for the best value.
      column_normalized: scale the columns of `C` to norm 1.
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
        # Gamma is rounded to four digits to keep the strategy's name short. This hardly
        # changes the error, which is near its minimum.
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
