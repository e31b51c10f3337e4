"""Banded Toeplitz strategies optimized for what a run pays: the error times the noise.

Published for balls in bins by Choquette-Choo, Ganesh, Haque, Steinke, Thakurta,
arXiv:2410.06266.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from tf_bandmf import matrices
from tf_bandmf.participation import BallsInBins, Participation
from tf_bandmf.strategies import amplified_search, optimized
from tf_bandmf.strategies.base import Strategy
from tf_bandmf.strategies.fractional_root import fractional_root_coefficients
from tf_bandmf.strategies.registry import Family, Option, default_bands, register
from tf_bandmf.strategies.toeplitz import optimized_toeplitz
from tf_bandmf.workloads import Workload, check_workload

if TYPE_CHECKING:
    from tf_bandmf.optimize.objectives import ObjectiveLike

_NAME = "amplified_toeplitz"
# Where the search begins: A^gamma, cut off, with these gammas; 1/2 is BSR.
_START_GAMMAS = 0.3, 0.5
# The least coefficient there, of the leading one.
_LEAST_START = 1e-4


def optimized_amplified_toeplitz(
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
    """The banded Toeplitz `C` with the smallest error times the noise for a budget.

    Like `optimized_amplified`, but `C` has the bands instead of `C^-1`: the noise
    generator keeps `bands - 1` vectors. All coefficients are positive. Without
    amplification, and under sampling that amplifies by the column norm, the result is
    that of `optimized_toeplitz`.

    Args:
      workload: A; a learning-rate schedule is taken into account.
      participation: gives the bins, or b and k.
      bands: of `C`, 1 <= bands <= n.
      epsilon: of the budget, > 0; needed under balls in bins.
      delta: of the budget, in (0, 1), likewise.
      objective: as in `optimized_amplified`.
      max_steps: likewise.
      progress: likewise.

    Returns:
      The strategy, as from `optimized_amplified`; by draws of the accountant, not worse
      than the first bands of the square root of A, or `optimized_toeplitz`.

    Raises:
      ValueError: if an argument is out of range, or the budget is missing.
    """
    check_workload(workload)
    bands = optimized.check_bands(bands, workload.num_steps)
    participation.validate_num_steps(workload.num_steps)
    if not isinstance(participation, BallsInBins):
        plain = optimized_toeplitz(
            workload, participation, bands, objective=objective, progress=progress
        )
        return dataclasses.replace(plain, family=_NAME)
    budget = amplified_search.check_budget(_NAME, participation, epsilon, delta)
    if bands == 1:
        identity = matrices.ToeplitzBanded(np.ones(1), workload.num_steps)
        return Strategy(_NAME, identity, {"bands": 1})
    from tf_bandmf.optimize import amplified_forms

    return amplified_search.search(
        _NAME,
        amplified_forms.Bands(workload),
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
    """Where the search may begin, in its variables.

    Roots of the workload, closer to the identity for small epsilon, and the best
    strategy without amplification; what is not positive is raised.
    """
    from tf_bandmf.optimize import amplified_forms

    goal = objective if isinstance(objective, str) else "mean"
    plain = optimized_toeplitz(
        workload, participation, bands, objective=goal, progress=False
    )
    column = plain.matrix.toeplitz_column()
    assert column is not None
    starts = [column[:bands]]
    starts += [fractional_root_coefficients(workload, -g, bands) for g in _START_GAMMAS]
    return [
        amplified_forms.Bands.variables(np.maximum(start, _LEAST_START * start[0]))
        for start in starts
    ]


def _build(
    workload: Workload,
    participation: Participation,
    bands: int | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    objective: str = "mean",
) -> Strategy:
    if bands is None:
        bands = default_bands(workload, participation)
    return optimized_amplified_toeplitz(
        workload,
        participation,
        bands,
        epsilon=epsilon,
        delta=delta,
        objective=objective,
    )


register(
    Family(
        _NAME,
        _build,
        "C banded, optimized for the noise of the budget under balls in bins",
        Option("bands", typical="16"),
        is_banded=True,
        is_limited_by_separation=False,
        only_if_simulated=True,
        is_optimized=True,
    )
)
