"""Mechanisms by name: from "bsr" and its options to a strategy.

The one place that knows which names exist; plans, tables and the command line ask here.
"""

from __future__ import annotations

import inspect
from typing import Any, Callable, Dict, Optional

from tf_bandmf import strategies
from tf_bandmf.participation import Participation
from tf_bandmf.strategies import Strategy
from tf_bandmf.workloads import Workload

# Bands that a mechanism tries when none are given: more memory is a user's decision.
_LARGEST_DEFAULT_BANDS = 32


def build_strategy(
    mechanism: str, workload: Workload, participation: Participation, **options: Any
) -> Strategy:
    """Builds the strategy of a mechanism for a workload and a participation.

    Args:
      mechanism: a key of `MECHANISMS`.
      workload: A; gives the number of steps.
      participation: for the mechanisms that optimize their sensitivity.
      **options: `bands`, `lambda_`, `column_normalized`, `objective`: those that the
        mechanism takes. An option that is None counts as not given.

    Raises:
      ValueError: for an unknown mechanism or an option that it does not take.
    """
    if mechanism not in MECHANISMS:
        raise ValueError(
            f"mechanism must be one of {', '.join(sorted(MECHANISMS))}, found "
            f"{mechanism!r}."
        )
    builder = MECHANISMS[mechanism]
    given = {name: value for name, value in options.items() if value is not None}
    accepted = set(inspect.signature(builder).parameters) - {"workload", "participation"}
    unknown = sorted(set(given) - accepted)
    if unknown:
        takes = ", ".join(sorted(accepted)) or "no options"
        raise ValueError(f"{mechanism} takes {takes}, found {', '.join(unknown)}.")
    return builder(workload, participation, **given)


def _identity(workload: Workload, participation: Participation) -> Strategy:
    return strategies.identity(workload.num_steps)


def _lambda_cgd(
    workload: Workload,
    participation: Participation,
    lambda_: Optional[float] = None,
    column_normalized: bool = False,
    objective: str = "mean",
) -> Strategy:
    if lambda_ is not None:
        return strategies.lambda_cgd(workload.num_steps, lambda_, column_normalized)
    return strategies.optimized_lambda_cgd(
        workload, participation, objective, column_normalized
    )


def _with_best_bands(
    family: Callable[[Workload, int, bool], Strategy],
    workload: Workload,
    participation: Participation,
    bands: Optional[int],
    column_normalized: bool,
) -> Strategy:
    if bands is not None:
        return family(workload, bands, column_normalized)
    limit = min(_LARGEST_DEFAULT_BANDS, participation.separation(), workload.num_steps)
    powers = [2**i for i in range(limit.bit_length()) if 2**i <= limit]
    candidates = [family(workload, power, column_normalized) for power in powers]
    return min(candidates, key=lambda s: s.rmse(workload, participation))


def _bsr(
    workload: Workload,
    participation: Participation,
    bands: Optional[int] = None,
    column_normalized: bool = False,
) -> Strategy:
    return _with_best_bands(
        strategies.bsr, workload, participation, bands, column_normalized
    )


def _bisr(
    workload: Workload,
    participation: Participation,
    bands: Optional[int] = None,
    column_normalized: bool = False,
) -> Strategy:
    return _with_best_bands(
        strategies.bisr, workload, participation, bands, column_normalized
    )


MECHANISMS: Dict[str, Callable[..., Strategy]] = {
    "identity": _identity,
    "dp_sgd": _identity,
    "lambda_cgd": _lambda_cgd,
    "bsr": _bsr,
    "bisr": _bisr,
}
