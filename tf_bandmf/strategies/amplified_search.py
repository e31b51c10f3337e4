"""What the families share that are optimized for amplified noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tf_bandmf.accounting.checks import check_delta, check_positive
from tf_bandmf.participation import BallsInBins
from tf_bandmf.strategies import optimized
from tf_bandmf.strategies.base import Strategy

if TYPE_CHECKING:
    from tf_bandmf.optimize.amplified_forms import Form
    from tf_bandmf.optimize.objectives import ObjectiveLike

_LARGEST_BINS = 2_048
# Draws of the search, for each direction of adjacency: entries, and limits.
_ENTRIES, _LEAST_DRAWS, _MOST_DRAWS = 200_000, 1_000, 3_000


def check_budget(
    family: str,
    participation: BallsInBins,
    epsilon: float | None,
    delta: float | None,
) -> tuple[float, float]:
    """The budget, if there is one that a strategy can be searched for.

    Raises:
      ValueError: if the budget is missing or out of range, or the bins are too many.
    """
    if epsilon is None or delta is None:
        raise ValueError(
            f"{family} is optimized for a budget, found none: give epsilon and delta."
        )
    check_positive("epsilon", epsilon)
    check_delta(delta)
    if participation.num_bins > _LARGEST_BINS:
        raise ValueError(
            f"{family} strategies need num_bins <= {_LARGEST_BINS}, found "
            f"{participation.num_bins}. Use bifr or bisr."
        )
    return float(epsilon), float(delta)


def search(
    family: str,
    form: Form,
    starts: list[np.ndarray],
    participation: BallsInBins,
    budget: tuple[float, float],
    objective: ObjectiveLike,
    max_steps: int,
    progress: bool | None,
) -> Strategy:
    """The strategy that is found from the best of some starts.

    Args:
      family: its name.
      form: of `C`.
      starts: variables of the form.
      participation: gives the bins.
      budget: epsilon and delta.
      objective: as in `optimized_amplified`.
      max_steps: likewise.
      progress: likewise.

    Returns:
      The strategy, by draws of the accountant not worse than any start.
    """
    from tf_bandmf.optimize import amplified, lbfgs, objectives

    bins, is_toeplitz = participation.num_bins, form.workload.is_toeplitz
    goal = objectives.resolve(objective, errors_increase=is_toeplitz)
    draws = min(max(_ENTRIES // bins, _LEAST_DRAWS), _MOST_DRAWS)
    problem = amplified.Problem(form, goal, bins, *budget, draws)
    options = lbfgs.Options(
        max_iterations=max_steps,
        gradient_tolerance=2e-3,
        decrease_tolerance=2e-3,
        progress=progress,
    )
    result = amplified.optimize(problem, min(starts, key=problem.first_value), options)
    epsilon, delta = budget
    return Strategy(
        family,
        form.matrix(result.position),
        {**form.size(result.position), "epsilon": epsilon, "delta": delta},
        optimized.diagnostics(goal.name, result),
    )
