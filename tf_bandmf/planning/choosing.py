"""Chooses a mechanism for a budget, by the error of the noise that is really added.

Under amplification, the noise depends on the strategy in a way that sensitivity does
not show: fewer bands (arXiv:2306.08153, Appendix F.4) and a smaller lambda
(arXiv:2601.22334, section 5.1) are amplified more. Each candidate is therefore
calibrated by the accountant of its sampling, and compared by
`sqrt(mean per-step error) * noise standard deviation`.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from tf_bandmf.accounting.checks import whole_number
from tf_bandmf.participation import Participation
from tf_bandmf.participation.scheme import Scheme
from tf_bandmf.planning import comparison
from tf_bandmf.planning.candidates import Candidate, Excluded, Search
from tf_bandmf.strategies import Strategy, registry
from tf_bandmf.workloads import Workload

# How many bands without a word about memory.
DEFAULT_MEMORY_VECTORS = 31
_LOG = logging.getLogger("tf_bandmf")
# Among mechanisms whose RMSE is within this factor the one that costs least is chosen.
_AS_GOOD = 1.01
# Time to read a kept vector in units of drawing one again: benchmarks/noise.py.
_COST_OF_KEPT = 0.05


@dataclasses.dataclass(frozen=True)
class Choice:
    """The mechanisms that were compared, the chosen one, and the reason.

    Attributes:
      table: one row for each mechanism, whose parameters are already chosen.
      mechanism: mechanism of the chosen row, for instance "bisr:8".
      reason: one or two sentences.
      excluded: mechanisms that were not compared, and why not.
      advice: what other samplings would gain and require, one or two sentences each;
        empty if the mechanism was named.
      strategy: C, or None in a choice that was read from a plan.
      participation: participation of the run with this strategy; None if `strategy` is.
    """

    table: comparison.Comparison
    mechanism: str
    reason: str
    excluded: Mapping[str, str]
    strategy: Strategy | None = None
    participation: Participation | None = None
    advice: tuple[str, ...] = ()

    def to_record(self) -> dict[str, Any]:
        """Plain finite values, ready for JSON."""
        return {
            "mechanism": self.mechanism,
            "reason": self.reason,
            "excluded": dict(self.excluded),
            "advice": list(self.advice),
            "title": self.table.title,
            "rows": self.table.to_records(),
        }

    @classmethod
    def of_strategy(cls, strategy: Strategy) -> Choice | None:
        """The choice that led to a strategy, even in a saved plan; None without one."""
        record = strategy.diagnostics.get("choice")
        if record is None:
            return None
        rows = tuple(comparison.Row(**row) for row in record["rows"])
        return cls(
            comparison.Comparison(record["title"], rows),
            record["mechanism"],
            record["reason"],
            record["excluded"],
            advice=tuple(record.get("advice", ())),
        )

    def __str__(self) -> str:
        excluded = [f"Not compared: {n}: {why}" for n, why in self.excluded.items()]
        return "\n".join([str(self.table), *excluded, self.reason, *self.advice])


def choose(
    workload: Workload,
    sampling: Participation | Scheme,
    *,
    epsilon: float,
    delta: float,
    mechanism_names: Sequence[str] | None = None,
    max_memory_vectors: int | None = None,
    objective: str = "mean",
    confidence: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> Choice:
    """Compares mechanisms with their best parameters and chooses one.

    A name without a value ("bisr") has its parameter chosen: lambda, the number of bands
    or of buffers, and under cyclic sampling, given as a `Scheme`, the number of parts
    with it. Without amplification that is the default of the mechanism. The smallest
    error wins; among those within 1% of it the one whose steps take the least time: a
    vector of normals that is drawn again counts as one, a vector that is kept as 0.05.

    Args:
      workload: A.
      sampling: a participation, or a `Scheme` that leaves the number of parts open.
      epsilon: > 0.
      delta: in (0, 1).
      mechanism_names: as `registry.parse` reads them; by default all that "auto"
        compares.
      max_memory_vectors: vectors of the model's size that the noise may keep between
        steps; by default 31 for what is searched, and what it needs for a single
        mechanism that is not ("bsr:64"). As many may be drawn again, but at least 31.
      objective: "mean" for the RMSE, "max" for the MaxSE.
      confidence: of accounting by simulation; see `tf_bandmf.plan`.
      progress: called with a text before each mechanism.

    Raises:
      ValueError: on invalid arguments, or if no mechanism can be used.
    """
    if objective not in ("mean", "max"):
        raise ValueError(f'objective must be "mean" or "max", found {objective!r}.')
    limit = _memory_limit(max_memory_vectors)
    if mechanism_names is None:
        mechanism_names = registry.auto_names()
    for name in mechanism_names:
        registry.parse(name)
    is_auto = len(mechanism_names) > 1
    search = Search(
        workload,
        sampling,
        epsilon,
        delta,
        limit,
        objective,
        confidence,
        is_draft=is_auto,
        is_limit_of_searches=not is_auto and max_memory_vectors is None,
    )
    tell = _teller(progress)
    best: dict[str, Candidate] = {}
    excluded: dict[str, str] = {}
    for name in sorted(mechanism_names, key=_is_refinement):
        tell(name)
        try:
            wanted = name
            if is_auto and _is_refinement(name):
                family = registry.family_of(name)
                wanted = search.refined(family, tuple(best.values()))
            candidate = search.best_of(wanted, is_auto)
        except Excluded as error:
            excluded[name] = str(error)
            continue
        best[candidate.row.mechanism] = candidate
    if not best:
        reasons = " ".join(f"{name}: {why}" for name, why in excluded.items())
        raise ValueError(f"No mechanism can be used. {reasons}")
    rows = tuple(candidate.row for candidate in best.values())
    chosen, reason = _decide(rows, search.value, objective, limit)
    if search.is_draft(best[chosen]):
        tell(f"{chosen}, in full")
        best[chosen] = search.in_full(best[chosen])
        rows = tuple(candidate.row for candidate in best.values())
    table = comparison.Comparison(search.title(best[chosen].participation), rows)
    choice = Choice(table, chosen, reason, excluded)
    strategy = best[chosen].strategy
    strategy = dataclasses.replace(
        strategy,
        diagnostics={**strategy.diagnostics, "choice": choice.to_record()},
    )
    return dataclasses.replace(
        choice, strategy=strategy, participation=best[chosen].participation
    )


def _is_refinement(name: str) -> bool:
    """Whether it is a family by name alone that refines another."""
    return name in registry.FAMILIES and registry.FAMILIES[name].refines is not None


def _teller(progress: Callable[[str], None] | None) -> Callable[[str], None]:
    """Names what is computed, to the log of the library and to the caller."""

    def tell(text: str) -> None:
        _LOG.info("comparing %s", text)
        if progress is not None:
            progress(text)

    return tell


def check_memory(strategy: Strategy, max_memory_vectors: int | None) -> None:
    """Raises ValueError if a strategy keeps more vectors than are allowed."""
    if max_memory_vectors is None:
        return
    limit = _memory_limit(max_memory_vectors)
    if strategy.memory_vectors > limit:
        raise ValueError(
            f"The strategy keeps {strategy.memory_vectors} vectors, found "
            f"max_memory_vectors = {limit}. Use fewer bands or buffers, or a strategy "
            f"with a banded inverse."
        )


def _memory_limit(max_memory_vectors: int | None) -> int:
    if max_memory_vectors is None:
        return DEFAULT_MEMORY_VECTORS
    return whole_number("max_memory_vectors", max_memory_vectors, least=0)


def _decide(
    rows: Sequence[comparison.Row],
    value: Callable[[comparison.Row], float],
    objective: str,
    limit: int,
) -> tuple[str, str]:
    """The mechanism of the row that is chosen, and why."""
    name = "RMSE" if objective == "mean" else "MaxSE"
    best = min(rows, key=value)
    as_good = [row for row in rows if value(row) <= _AS_GOOD * value(best)]
    chosen = min(
        as_good,
        key=lambda row: (
            row.regenerations_per_step + _COST_OF_KEPT * row.memory_vectors,
            value(row),
        ),
    )
    reason = f"Chosen: {chosen.mechanism}, {name} {value(chosen):.4g}, "
    if chosen is best:
        reason += f"the smallest that fits {limit} vectors of memory"
    else:
        more = 100.0 * (value(chosen) / value(best) - 1.0)
        reason += (
            f"{more:.1f}% above the smallest ({best.mechanism}, {value(best):.4g}), "
            f"which keeps {best.memory_vectors} vectors and draws "
            f"{best.regenerations_per_step} again where this one keeps "
            f"{chosen.memory_vectors} and draws {chosen.regenerations_per_step}"
        )
    others = [row for row in rows if row is not chosen and row is not best]
    if others:
        second = min(others, key=value)
        more = 100.0 * (value(second) / value(chosen) - 1.0)
        reason += f"; {second.mechanism} has {more:.2g}% more"
    return chosen.mechanism, reason + "."
