"""Strategies optimized for what a run pays: the error times the amplified noise.

Other families minimize the error at unit sensitivity, or per unit of column norm.
Amplification by sampling makes the noise depend on the whole Gram matrix of the bins, and
on the budget: the best strategy for epsilon = 1 is not that for epsilon = 8.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from tf_bandmf import matrices
from tf_bandmf.participation import BallsInBins, Participation
from tf_bandmf.strategies import amplified_search, optimized
from tf_bandmf.strategies.banded_inverse import optimized_banded_inverse
from tf_bandmf.strategies.base import Strategy
from tf_bandmf.strategies.fractional_root import fractional_root_coefficients
from tf_bandmf.strategies.registry import Family, Option, register
from tf_bandmf.workloads import Workload, check_workload

if TYPE_CHECKING:
    from tf_bandmf.optimize.objectives import ObjectiveLike

_DEFAULT_BANDS = 16
# Where the search begins: gamma-BIFR with this gamma; and the largest sums of y there.
_START_GAMMA = 0.6
_MOST_START, _MOST_PLAIN = 0.95, 0.9995


def optimized_amplified(
    workload: Workload,
    participation: Participation,
    bands: int,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    objective: ObjectiveLike = "mean",
    max_steps: int = 10,
    progress: bool | None = None,
) -> Strategy:
    """The Toeplitz `C` with the smallest error times the noise for a budget.

    `C^-1` has `bands` diagonals; under balls in bins, the noise is found by simulation
    in both directions of adjacency (`optimize.amplified`), and `C` has no negative
    entries. The noise generator keeps nothing and regenerates `bands - 1` earlier
    vectors at each step. Without amplification, noise is proportional to the
    sensitivity, whatever the budget: the result is that of `optimized_banded_inverse`.

    Under cyclic sampling, noise is proportional to the column norm (arXiv:2306.08153,
    Theorem 4): there, use `optimized_toeplitz`.

    Args:
      workload: A; a learning-rate schedule is taken into account.
      participation: gives the bins, or b and k.
      bands: of `C^-1`, 1 <= bands <= n.
      epsilon: of the budget, > 0; needed under balls in bins.
      delta: of the budget, in (0, 1), likewise.
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
      ValueError: if an argument is out of range, or the budget is missing.
    """
    check_workload(workload)
    bands = optimized.check_bands(bands, workload.num_steps)
    participation.validate_num_steps(workload.num_steps)
    if not isinstance(participation, BallsInBins):
        found = optimized_banded_inverse(
            workload, participation, bands, objective=objective, progress=progress
        )
        return dataclasses.replace(found, family="amplified")
    budget = amplified_search.check_budget("amplified", participation, epsilon, delta)
    if bands == 1:
        identity = matrices.ToeplitzBanded(np.ones(1), workload.num_steps)
        return Strategy("amplified", matrices.Inverse(identity), {"bands": 1})
    from tf_bandmf.optimize import amplified_forms

    return amplified_search.search(
        "amplified",
        amplified_forms.InverseBands(workload),
        _starts(workload, participation, bands, objective),
        participation,
        budget,
        objective,
        max_steps,
        progress,
    )


def _starts(
    workload: Workload,
    participation: Participation,
    bands: int,
    objective: ObjectiveLike,
) -> list[np.ndarray]:
    """Where the search may begin, in its variables; positive terms are left out.

    gamma-BIFR, which is close for small epsilon, and the best strategy without
    amplification, which is for large epsilon.
    """
    from tf_bandmf.optimize import amplified_forms

    bifr = -fractional_root_coefficients(workload, _START_GAMMA, bands)[1:]
    goal = objective if isinstance(objective, str) else "mean"
    found = optimized_banded_inverse(
        workload, participation, bands, objective=goal, progress=False
    )
    plain = np.zeros(bands - 1)
    inverse = found.core.banded_inverse()
    assert inverse is not None
    rows = matrices.as_rows(inverse)
    plain[: rows.shape[1] - 1] = -rows[-1, 1:]
    starts = []
    for y, most in ((bifr, _MOST_START), (plain, _MOST_PLAIN)):
        y = np.maximum(y, 1e-3 / bands)
        starts.append(
            amplified_forms.InverseBands.variables(y * min(1.0, most / y.sum()))
        )
    return starts


def _build(
    workload: Workload,
    participation: Participation,
    bands: int | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    objective: str = "mean",
) -> Strategy:
    if bands is None:
        bands = min(_DEFAULT_BANDS, workload.num_steps)
    return optimized_amplified(
        workload,
        participation,
        bands,
        epsilon=epsilon,
        delta=delta,
        objective=objective,
    )


register(
    Family(
        "amplified",
        _build,
        "C^-1 banded, optimized for the noise of the budget under balls in bins",
        Option("bands"),
        auto=3,
        has_banded_inverse=True,
        is_limited_by_separation=False,
        only_if_simulated=True,
        is_optimized=True,
    )
)
