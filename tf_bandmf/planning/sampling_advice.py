"""What another sampling would give for the same data and budget, and what it demands.

A plan holds the sampling fixed; between samplings the error differs by more than between
good mechanisms. A few quick rows of each say how much: enough for one sentence.
"""

from __future__ import annotations

import contextlib
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
    promised: list[Row] = []
    for name, cls in sorted(NAMED.items()):
        # b-min-sep is simulated step by step: no matter of seconds.
        is_slow = cls.is_simulated and cls.is_cyclic
        scheme = Scheme(name, num_examples, size, epochs)
        if name == best.sampling or not cls.is_amplified or is_slow:
            continue
        if tell is not None:
            tell(f"sampling {name}")
        # Another adjacency is not to be compared.
        with contextlib.suppress(ValueError, ArithmeticError):
            if scheme.num_steps == workload.num_steps and not _replaces(
                scheme, workload
            ):
                rows = quick_rows(scheme, workload, budget)
                promised.append(min(rows, key=lambda row: row.rmse))
    better = [row for row in promised if row.rmse < (1.0 - _WORTH) * best.rmse]
    if better or not promised:
        better.sort(key=lambda row: row.rmse)
        return tuple(
            f'Another sampling: with sampling="{row.sampling}" the RMSE would be about '
            f"{row.rmse:.3g} ({row.mechanism}), {1.0 - row.rmse / best.rmse:.0%} less. It "
            f"demands {NAMED[str(row.sampling)].demands}."
            for row in better
        )
    compared = ", ".join(str(row.sampling) for row in promised)
    return (f"No other sampling promises a smaller error; compared: {compared}.",)


def _replaces(scheme: Scheme, workload: Workload) -> bool:
    """Whether guarantees of a sampling are for data sets that replace an example."""
    participation = scheme.participation(1 if scheme.is_cyclic else None)
    strategy = registry.build_strategy("identity", workload, participation)
    return accountant_for(strategy, participation).claims[0][2] == REPLACE_ONE
