"""What another sampling would give for the same data and budget, and what it demands.

The choice of a mechanism holds the sampling fixed; between samplings the error differs by
more than between good mechanisms. A few closed forms, with noise from few draws, say how
much: enough for one sentence, not for a plan.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Callable

from tf_bandmf.accounting.guarantee import REPLACE_ONE
from tf_bandmf.analysis import error
from tf_bandmf.participation import NAMED, Participation
from tf_bandmf.participation.scheme import Scheme
from tf_bandmf.planning import calibration
from tf_bandmf.strategies import Strategy, registry
from tf_bandmf.workloads import Workload

# Mechanisms that stand for a sampling: with parts in turn, and for any strategy.
_BANDED = ("bsr:4", "bsr:16")
_ANY = ("lambda_cgd:0.5", "lambda_cgd:0.9", "lambda_cgd:0.98", "bifr:4:0.65")
# Differences below this are not worth a sentence.
_WORTH = 0.03


@dataclasses.dataclass(frozen=True)
class _Alternative:
    sampling: str
    mechanism: str
    rmse: float


def advised(
    strategy: Strategy,
    workload: Workload,
    participation: Participation,
    epsilon: float,
    delta: float,
    tell: Callable[[str], None] | None = None,
) -> Strategy:
    """The strategy of a `Choice`, with advice on samplings in its record.

    Args:
      strategy: C, as `choosing.choose` returns it.
      workload: A.
      participation: that of the choice.
      epsilon: > 0.
      delta: in (0, 1).
      tell: called with a text before each sampling.
    """
    record = strategy.diagnostics["choice"]
    rmse = next(
        row["rmse"] for row in record["rows"] if row["mechanism"] == record["mechanism"]
    )
    total = getattr(participation, "num_examples", None)
    batch = getattr(participation, "batch_size", None)
    if total is None or batch is None or participation.sampling is None:
        return strategy
    epochs = max(1, workload.num_steps // -(-total // batch))
    found: list[_Alternative] = []
    for name in sorted(NAMED):
        cls = NAMED[name]
        # b-min-sep is simulated step by step: no matter of seconds.
        is_slow = cls.is_simulated and cls.is_cyclic
        if name == participation.sampling or not cls.is_amplified or is_slow:
            continue
        if tell is not None:
            tell(f"sampling {name}")
        scheme = Scheme(name, total, batch, epochs)
        if scheme.num_steps == workload.num_steps:
            found += _alternatives(scheme, workload, epsilon, delta)
    if not found:
        return strategy
    best: dict[str, _Alternative] = {}
    for one in sorted(found, key=lambda one: one.rmse):
        best.setdefault(one.sampling, one)
    better = [one for one in best.values() if one.rmse < (1.0 - _WORTH) * rmse]
    advice = [_sentence(one, rmse) for one in better]
    if not advice:
        compared = ", ".join(best)
        advice = [f"No other sampling promises a smaller error; compared: {compared}."]
    diagnostics = {**strategy.diagnostics, "choice": {**record, "advice": advice}}
    return dataclasses.replace(strategy, diagnostics=diagnostics)


def _sentence(found: _Alternative, rmse: float) -> str:
    less = 100.0 * (1.0 - found.rmse / rmse)
    return (
        f'Another sampling: with sampling="{found.sampling}" the RMSE would be about '
        f"{found.rmse:.3g} ({found.mechanism}), {less:.0f}% less. It demands "
        f"{NAMED[found.sampling].demands}."
    )


def _alternatives(
    scheme: Scheme, workload: Workload, epsilon: float, delta: float
) -> Iterator[_Alternative]:
    """A few closed forms under a sampling, those that can be compared."""
    cls = NAMED[scheme.sampling]
    names = _ANY if cls.is_simulated else _BANDED if scheme.is_cyclic else ("identity",)
    for mechanism in names:
        family, options = registry.parse(mechanism)
        bands = options.get("bands", 1)
        if scheme.is_cyclic and bands > scheme.largest_cycle:
            continue
        try:
            participation = scheme.participation(bands if scheme.is_cyclic else None)
            strategy = registry.build_strategy(
                family, workload, participation, **options
            )
            accountant = calibration.accountant_for(strategy, participation)
            # Another adjacency is not to be compared.
            if any(adjacency == REPLACE_ONE for _, _, adjacency in accountant.claims):
                return
            noise = accountant.rough_noise_stddev(epsilon, delta)
        except (ValueError, ArithmeticError):
            continue
        per_step = strategy.per_step_squared_error(workload)
        rmse = error.root_mean_squared_error(per_step) * noise
        yield _Alternative(scheme.sampling, mechanism, rmse)
