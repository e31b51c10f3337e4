"""BLT strategies optimized for what a run pays: the error times the amplified noise."""

from __future__ import annotations

import dataclasses

from tf_bandmf import matrices
from tf_bandmf.participation import BallsInBins, Participation
from tf_bandmf.strategies import amplified_search, buffered
from tf_bandmf.strategies.base import Strategy
from tf_bandmf.strategies.registry import Family, Option, register
from tf_bandmf.workloads import Workload

_NAME = "amplified_blt"


def optimized_amplified_blt(
    workload: Workload,
    participation: Participation,
    num_buffers: int = buffered.DEFAULT_BUFFERS,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    objective: str = "mean",
    max_steps: int = 10,
    progress: bool | None = None,
) -> Strategy:
    """The BLT with the smallest error times the noise for a budget.

    Like `optimized_amplified`, among the matrices of `blt`: a few buffers remember as
    much as many bands. Without amplification, the result is that of `blt`.

    Args:
      workload: A; a learning-rate schedule is taken into account under balls in bins.
      participation: gives the bins, or b and k.
      num_buffers: vectors of the model's size that the noise generator may keep, from 1
        to 10.
      epsilon: of the budget, > 0; needed under balls in bins.
      delta: of the budget, in (0, 1), likewise.
      objective: "mean" for the RMSE, "max" for the MaxSE.
      max_steps: as in `optimized_amplified`.
      progress: likewise.

    Returns:
      The strategy, as from `optimized_amplified`; by draws of the accountant, not worse
      than `blt`. Like `blt`, it may have fewer buffers.

    Raises:
      ValueError: if an argument is out of range, or the budget is missing.
    """
    participation.validate_num_steps(workload.num_steps)
    if not isinstance(participation, BallsInBins):
        plain = buffered.blt(workload, participation, num_buffers, objective)
        return dataclasses.replace(plain, family=_NAME)
    budget = amplified_search.check_budget(_NAME, participation, epsilon, delta)
    plain = buffered.blt(workload, participation, num_buffers, objective)
    from tf_bandmf.optimize import amplified_forms

    assert isinstance(plain.matrix, matrices.BufferedToeplitz)
    start = buffered.variables_of(plain.matrix.decays, plain.matrix.inverse_decays)
    return amplified_search.search(
        _NAME,
        amplified_forms.Buffers(workload),
        [start],
        participation,
        budget,
        objective,
        max_steps,
        progress,
    )


def _build(
    workload: Workload,
    participation: Participation,
    buffers: int = buffered.DEFAULT_BUFFERS,
    epsilon: float | None = None,
    delta: float | None = None,
    objective: str = "mean",
) -> Strategy:
    return optimized_amplified_blt(
        workload,
        participation,
        buffers,
        epsilon=epsilon,
        delta=delta,
        objective=objective,
    )


register(
    Family(
        _NAME,
        _build,
        "BLT, optimized for the noise of the budget under balls in bins",
        Option("buffers", default=buffered.DEFAULT_BUFFERS),
        only_if_simulated=True,
        is_optimized=True,
    )
)
