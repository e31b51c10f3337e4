"""What another sampling would give for the same data and budget, and what it demands.

A plan holds the sampling fixed; between samplings the error differs by more than between
good mechanisms. A few quick rows of each say how much: enough for one sentence.
"""

from __future__ import annotations

from typing import Callable

from tf_bandmf.accounting.guarantee import REPLACE_ONE
from tf_bandmf.participation import NAMED
from tf_bandmf.participation.scheme import Scheme
from tf_bandmf.planning.calibration import accountant_for
from tf_bandmf.planning.compare import Row, quick_rows
from tf_bandmf.strategies import registry
from tf_bandmf.workloads import Workload

# Differences below this are not worth a sentence.
_WORTH = 0.03


def sentences(
    best: Row,
    workload: Workload,
    num_examples: int | None,
    budget: tuple[float, float],
    tell: Callable[[str], None] | None = None,
) -> tuple[str, ...]:
    """What other samplings promise; none where the caller makes the batches.

    Args:
      best: row of a mechanism under its sampling.
      workload: A.
      num_examples: m, if known.
      budget: epsilon and delta.
      tell: called with a text before each sampling.
    """
    if num_examples is None or best.batch_size is None or best.sampling is None:
        return ()
    size = int(best.batch_size)
    epochs = max(1, workload.num_steps // -(-num_examples // size))
    found: list[Row] = []
    for name in sorted(NAMED):
        cls = NAMED[name]
        # b-min-sep is simulated step by step: no matter of seconds.
        is_slow = cls.is_simulated and cls.is_cyclic
        if name == best.sampling or not cls.is_amplified or is_slow:
            continue
        if tell is not None:
            tell(f"sampling {name}")
        scheme = Scheme(name, num_examples, size, epochs)
        if scheme.num_steps != workload.num_steps:
            continue
        try:
            if _replaces(scheme, workload):
                continue  # another adjacency is not to be compared
            rows = quick_rows(scheme, workload, budget)
        except (ValueError, ArithmeticError):
            continue
        found.append(min(rows, key=lambda row: row.rmse))
    better = [row for row in found if row.rmse < (1.0 - _WORTH) * best.rmse]
    better.sort(key=lambda row: row.rmse)
    if better or not found:
        return tuple(_sentence(row, best.rmse) for row in better)
    compared = ", ".join(str(row.sampling) for row in found)
    return (f"No other sampling promises a smaller error; compared: {compared}.",)


def _replaces(scheme: Scheme, workload: Workload) -> bool:
    """Whether guarantees of a sampling are for data sets that replace an example."""
    participation = scheme.participation(1 if scheme.is_cyclic else None)
    strategy = registry.build_strategy("identity", workload, participation)
    return accountant_for(strategy, participation).claims[0][2] == REPLACE_ONE


def _sentence(row: Row, rmse: float) -> str:
    less = 100.0 * (1.0 - row.rmse / rmse)
    return (
        f'Another sampling: with sampling="{row.sampling}" the RMSE would be about '
        f"{row.rmse:.3g} ({row.mechanism}), {less:.0f}% less. It demands "
        f"{NAMED[str(row.sampling)].demands}."
    )
