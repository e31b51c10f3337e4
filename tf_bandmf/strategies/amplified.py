"""Strategies optimized for what a run pays: the error times the amplified noise.

Other families minimize the error at unit sensitivity, or per unit of column norm.
Amplification by sampling makes the noise depend on the whole Gram matrix of the bins, and
on the budget: the best strategy for epsilon = 1 is not that for epsilon = 8.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tf_bandmf import bands as bands_lib
from tf_bandmf.participation import (
    BallsInBins,
    CyclicFixedSize,
    CyclicPoisson,
    Participation,
)
from tf_bandmf.strategies import optimized
from tf_bandmf.strategies.base import Strategy
from tf_bandmf.strategies.fractional_root import fractional_root_coefficients
from tf_bandmf.strategies.square_root import square_root_coefficients
from tf_bandmf.workloads import Workload

if TYPE_CHECKING:
    from tf_bandmf.optimize.objectives import ObjectiveLike

_LARGEST_BINS = 2_048
# Where the search begins: gamma-BIFR with this gamma.
_START_GAMMA = 0.6
# Draws of the search, for each direction of adjacency: entries, and limits.
_ENTRIES, _LEAST_DRAWS, _MOST_DRAWS = 200_000, 1_000, 3_000


def optimized_amplified(
    workload: Workload,
    participation: Participation,
    bands: int,
    *,
    epsilon: float,
    delta: float,
    objective: ObjectiveLike = "mean",
    max_steps: int = 8,
    progress: bool | None = None,
) -> Strategy:
    """The Toeplitz `C` with the smallest error times the noise for a budget.

    Balls in bins: `bands` diagonals of `C^-1`, the noise by simulation in both directions
    of adjacency (`optimize.amplified`); `C` has no negative entries. The noise generator
    keeps nothing and generates `bands - 1` earlier vectors again at each step.

    Cyclic sampling: `bands` diagonals of `C`. All participations of an example are
    amplified alike, so that the noise is proportional to the norm of the first column,
    by a factor that only sampling and budget decide (amplified-banded-mf, Theorem 4): the
    derivative of the noise by `C` is exactly that of the norm.

    Args:
      workload: A; a learning-rate schedule is taken into account.
      participation: `BallsInBins`, `CyclicPoisson` or `CyclicFixedSize`.
      bands: of `C^-1` (balls in bins) or of `C`, 1 <= bands <= n.
      epsilon: of the budget, > 0.
      delta: of the budget, in (0, 1).
      objective: "mean" for the RMSE, "max" for the MaxSE, "last" for the final model,
        or a differentiable function of the per-step squared errors.
      max_steps: of the optimizer under balls in bins, each with a few simulations.
      progress: True for a progress bar on stderr, False for none, None for one that
        appears on a terminal after two seconds.

    Returns:
      The strategy; its diagnostics say whether the optimizer converged. Its noise comes
      from the accountant, whose draws the search did not see. Equal arguments give equal
      strategies.

    Raises:
      ValueError: if an argument is out of range, or the sampling does not amplify.
    """
    bands = optimized.check_bands(bands, workload.num_steps)
    participation.validate_num_steps(workload.num_steps)
    for name, value, largest in (("epsilon", epsilon, math.inf), ("delta", delta, 1.0)):
        if not 0.0 < value < largest:
            raise ValueError(f"{name} must be in (0, {largest:g}), found {value}.")
    if isinstance(participation, (CyclicPoisson, CyclicFixedSize)):
        return _cyclic(workload, bands, objective, progress)
    if not isinstance(participation, BallsInBins):
        raise ValueError(
            f"amplified strategies are for sampling that amplifies (balls in bins, "
            f"cyclic sampling), found {type(participation).__name__}. Use bandinv or "
            f"toeplitz."
        )
    if participation.num_bins > _LARGEST_BINS:
        raise ValueError(
            f"amplified strategies need num_bins <= {_LARGEST_BINS}, found "
            f"{participation.num_bins}. Use bifr or bisr."
        )
    if bands == 1:
        identity = bands_lib.ToeplitzBanded(np.ones(1), workload.num_steps)
        return Strategy("amplified", bands_lib.Inverse(identity), {"bands": 1})
    from tf_bandmf.optimize import amplified, lbfgs, objectives

    b = participation.num_bins
    goal = objectives.resolve(objective, errors_increase=workload.is_toeplitz)
    draws = min(max(_ENTRIES // b, _LEAST_DRAWS), _MOST_DRAWS)
    problem = amplified.Problem(workload, goal, b, epsilon, delta, draws)
    options = lbfgs.Options(
        max_iterations=max_steps,
        gradient_tolerance=2e-3,
        decrease_tolerance=5e-4,
        progress=progress,
    )
    result = amplified.optimize(problem, _start(workload, bands), options)
    coefficients = amplified.to_coefficients(result.position).numpy()
    return Strategy(
        "amplified",
        bands_lib.Inverse(bands_lib.ToeplitzBanded(coefficients, workload.num_steps)),
        {"bands": bands, "epsilon": float(epsilon), "delta": float(delta)},
        optimized.diagnostics(goal.name, result),
    )


def _start(workload: Workload, bands: int) -> np.ndarray:
    """gamma-BIFR in the variables of the search; momentum's positive terms left out."""
    from tf_bandmf.optimize import amplified

    gamma = _START_GAMMA
    y = -fractional_root_coefficients(workload, gamma, bands)[1:]
    y = np.maximum(y, 1e-3 / bands)
    return amplified.to_variables(y * min(1.0, 0.95 / y.sum()))


def _cyclic(
    workload: Workload, bands: int, objective: ObjectiveLike, progress: bool | None
) -> Strategy:
    from tf_bandmf.optimize import lbfgs, objectives
    from tf_bandmf.optimize import toeplitz as problem

    n = workload.num_steps
    goal = objectives.resolve(objective, errors_increase=workload.is_toeplitz)
    start = square_root_coefficients(workload, bands)
    options = lbfgs.Options(gradient_tolerance=1e-7, progress=progress)
    ((coefficients, result),) = problem.optimize(workload, goal, [start], n, 1, options)
    matrix = bands_lib.ToeplitzBanded(coefficients, n)
    diagnostics = optimized.diagnostics(goal.name, result)
    return Strategy("amplified", matrix, {"bands": bands}, diagnostics)
