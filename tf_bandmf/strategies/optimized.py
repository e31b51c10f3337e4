"""The common parts of the numerically optimized families."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

import numpy as np

from tf_bandmf.accounting.checks import whole_number
from tf_bandmf.participation import Participation
from tf_bandmf.strategies.base import Strategy
from tf_bandmf.strategies.registry import default_bands
from tf_bandmf.workloads import Workload

if TYPE_CHECKING:
    from tf_bandmf.optimize.result import OptimizationResult


def check_bands(bands: int, num_steps: int) -> int:
    """Returns `bands` if it is a possible number of diagonals.

    Raises:
      ValueError: if it is not a whole number from 1 to `num_steps`.
    """
    return whole_number("bands", bands, most=num_steps, most_is="num_steps")


def fit_bands(x: np.ndarray, bands: int) -> np.ndarray:
    """The first `bands` entries along axis 0, zeros where there are fewer."""
    kept = x[:bands]
    return np.pad(kept, [(0, bands - len(kept))] + [(0, 0)] * (x.ndim - 1))


def diagnostics(objective_name: str, result: OptimizationResult) -> dict[str, Any]:
    """`Strategy.diagnostics` of an optimized strategy."""
    return {"objective": objective_name, **result.diagnostics()}


def builder(optimize: Callable[..., Strategy]) -> Callable[..., Strategy]:
    """Returns `Family.build` for an optimizer of (workload, participation, bands)."""

    def build(
        workload: Workload,
        participation: Participation,
        bands: int | None = None,
        column_normalized: bool = False,
        objective: str = "mean",
    ) -> Strategy:
        if bands is None:
            bands = default_bands(workload, participation)
        return optimize(
            workload,
            participation,
            bands,
            column_normalized=column_normalized,
            objective=objective,
        )

    return build
