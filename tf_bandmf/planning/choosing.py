"""Choosing a mechanism for a budget: by the error of the noise that is really added.

Under amplification the noise depends on the strategy in a way that no sensitivity tells:
fewer bands (arXiv:2306.08153, Appendix F.4) and a smaller lambda (dp-lambda-cgd,
section 5.1) are amplified more. Each candidate is therefore calibrated by the accountant
of its sampling, and compared by `sqrt(mean per-step error) * noise standard deviation`.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from tf_bandmf.participation import Participation
from tf_bandmf.participation.scheme import Scheme
from tf_bandmf.planning import calibration, comparison
from tf_bandmf.strategies import Family, Strategy, registry
from tf_bandmf.workloads import Workload

# How many bands without a word about memory.
DEFAULT_MEMORY_VECTORS = 31
_MOST_REGENERATIONS = 31
# Among mechanisms whose RMSE is within this factor the one that costs least is chosen.
_AS_GOOD = 1.01
# Time to read a kept vector in units of drawing one again: benchmarks/noise.py.
_COST_OF_KEPT = 0.05
# Searches compare candidates by few draws, the same ones for all.
_SEARCH_DRAWS = 3000
_LAMBDA_TOLERANCE = 0.05


@dataclasses.dataclass(frozen=True)
class Choice:
    """What was compared, what was chosen, and why.

    Attributes:
      table: one row for each mechanism, its own parameters chosen already.
      mechanism: of the row that was chosen, "bisr:8" for instance.
      reason: one or two sentences.
      excluded: mechanisms that were not compared, and why not.
      strategy: C, or None in a choice that was read from a plan.
      participation: of the run with this strategy, or None likewise.
    """

    table: comparison.Comparison
    mechanism: str
    reason: str
    excluded: Mapping[str, str]
    strategy: Strategy | None = None
    participation: Participation | None = None

    def to_record(self) -> dict[str, Any]:
        """Plain finite values, ready for JSON."""
        return {
            "mechanism": self.mechanism,
            "reason": self.reason,
            "excluded": dict(self.excluded),
            "title": self.table.title,
            "rows": self.table.to_records(),
        }

    @classmethod
    def of_strategy(cls, strategy: Strategy) -> Choice | None:
        """The choice that led to a strategy, also of a saved plan; None without one."""
        record = strategy.diagnostics.get("choice")
        if record is None:
            return None
        rows = tuple(comparison.Row(**row) for row in record["rows"])
        return cls(
            comparison.Comparison(record["title"], rows),
            record["mechanism"],
            record["reason"],
            record["excluded"],
        )

    def __str__(self) -> str:
        excluded = [f"Not compared: {n}: {why}" for n, why in self.excluded.items()]
        return "\n".join([str(self.table), *excluded, self.reason])


@dataclasses.dataclass(frozen=True)
class _Candidate:
    """A mechanism with all its parameters, and its row."""

    strategy: Strategy
    participation: Participation
    row: comparison.Row


class Excluded(ValueError):
    """A mechanism cannot be compared; the message says why."""


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
        steps; by default 31. As many may be drawn again, but at least 31.
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
    search = _Search(workload, sampling, epsilon, delta, limit, objective, confidence)
    best: dict[str, _Candidate] = {}
    excluded: dict[str, str] = {}
    for name in mechanism_names:
        if progress is not None:
            progress(name)
        try:
            candidate = search.best_of(name, is_auto=len(mechanism_names) > 1)
        except Excluded as error:
            excluded[name] = str(error)
            continue
        best[candidate.row.mechanism] = candidate
    if not best:
        reasons = " ".join(f"{name}: {why}" for name, why in excluded.items())
        raise ValueError(f"No mechanism can be used. {reasons}")
    rows = tuple(candidate.row for candidate in best.values())
    chosen, reason = _decide(rows, search.value, objective, limit)
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
    limit = max_memory_vectors
    if isinstance(limit, bool) or int(limit) != limit or limit < 0:
        raise ValueError(
            f"max_memory_vectors must be a whole number >= 0, found {limit!r}."
        )
    return int(limit)


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


class _Search:
    """Builds, calibrates and compares candidates under one sampling and budget."""

    def __init__(
        self,
        workload: Workload,
        sampling: Participation | Scheme,
        epsilon: float,
        delta: float,
        limit: int,
        objective: str,
        confidence: float | None,
    ) -> None:
        if isinstance(sampling, Scheme) and not sampling.is_cyclic:
            sampling = sampling.participation()
        self._sampling = sampling
        self._workload, self._limit = workload, limit
        self._budget, self._confidence = (epsilon, delta), confidence
        self._objective = objective
        self._is_amplified = isinstance(sampling, Participation) and (
            sampling.is_simulated
        )
        if isinstance(sampling, Participation):
            sampling.validate_num_steps(workload.num_steps)

    def value(self, row: comparison.Row) -> float:
        return row.rmse if self._objective == "mean" else row.max_se

    def title(self, participation: Participation) -> str:
        epsilon, delta = self._budget
        return (
            f"{self._workload.name} workload, {self._workload.num_steps} steps, epsilon "
            f"{epsilon:g}, delta {delta:g}. {participation.describe()}"
        )

    def best_of(self, name: str, is_auto: bool) -> _Candidate:
        """The best candidate of a mechanism, accounted for like the final plan.

        Raises:
          Excluded: if there is none.
        """
        family_name, options = registry.parse(name)
        family = registry.family_of(family_name)
        self._check_family(family)
        suffix = ":normalized" if options.get("column_normalized") else ""
        has_value = any(key != "column_normalized" for key in options)
        try:
            if has_value or family.option is None:
                return self._within_limit(self._candidate(name))
            if isinstance(self._sampling, Scheme) or self._is_amplified:
                return self._searched(family, suffix, is_auto)
            return self._unamplified(family, suffix, is_auto)
        except Excluded:
            raise
        except ValueError as error:
            if is_auto:
                raise Excluded(str(error)) from error
            raise

    def _check_family(self, family: Family) -> None:
        sampling = self._sampling
        if family.is_banded:
            return
        if isinstance(sampling, Scheme):
            raise Excluded(
                f"{sampling.sampling} amplifies only strategies C with bands; use "
                f"balls-in-bins for this one."
            )
        if sampling.is_amplified and not sampling.is_simulated:
            raise Excluded(
                f"{type(sampling).__name__} sampling amplifies only strategies C with "
                f"bands; use BallsInBins for this one."
            )

    def _largest_size(self, family: Family, is_auto: bool) -> int:
        """The most bands that memory, the run and the sampling permit."""
        n, limit = self._workload.num_steps, self._limit
        if family.has_banded_inverse:
            limit = max(_MOST_REGENERATIONS, limit)
        largest = min(limit + 1, n)
        if isinstance(self._sampling, Scheme):
            largest = min(largest, self._sampling.largest_cycle)
        elif family.is_limited_by_separation:
            largest = min(largest, self._sampling.separation())
        if family.largest_auto_work is not None and is_auto:
            largest = min(largest, int(math.sqrt(family.largest_auto_work / n)))
        return max(largest, 1)

    def _unamplified(self, family: Family, suffix: str, is_auto: bool) -> _Candidate:
        """Without amplification: the mechanism's default."""
        assert isinstance(self._sampling, Participation) and family.option is not None
        if family.option.grid:
            name = family.name + suffix
            _, options = registry.parse(name)
            strategy = registry.build_strategy(
                family.name,
                self._workload,
                self._sampling,
                **self._with_goal(family, options),
            )
            value = strategy.parameters[family.option.name.rstrip("_")]
            return self._candidate(_named(family, value, suffix))
        if not family.has_bands:
            return self._by_memory(family)
        largest = self._largest_size(family, is_auto)
        self._refuse_one_band(largest)
        if family.gains_by_bands:
            return self._candidate(f"{family.name}:{largest}{suffix}")
        found = [
            self._candidate(f"{family.name}:{p}{suffix}")
            for p in registry.powers_of_two(largest)
        ]
        return min(found, key=lambda candidate: self.value(candidate.row))

    def _searched(self, family: Family, suffix: str, is_auto: bool) -> _Candidate:
        """Under amplification: by calibrated noise."""
        assert family.option is not None
        if family.option.grid:
            return self._searched_number(family, family.option.grid, suffix)
        if not family.has_bands:
            return self._by_memory(family)
        largest = self._largest_size(family, is_auto)
        self._refuse_one_band(largest)
        best: _Candidate | None = None
        # The error falls with the number of bands, then it rises.
        for size in registry.powers_of_two(largest)[1:]:
            found = self._candidate(f"{family.name}:{size}{suffix}", rough=True)
            if best is not None and self.value(found.row) > self.value(best.row):
                break
            best = found
        assert best is not None
        return self._account_in_full(best)

    def _searched_number(
        self, family: Family, values: Sequence[float], suffix: str
    ) -> _Candidate:
        """dp-lambda-cgd, section 5.1: coarse on a grid, then between its neighbors."""
        import scipy.optimize  # slow to import

        tried: dict[float, _Candidate] = {}

        def error(log_rest: float) -> float:
            value = _rounded_lambda(1.0 - math.exp(log_rest))
            if value not in tried:
                name = _named(family, value, suffix)
                tried[value] = self._candidate(name, rough=True)
            return math.log(self.value(tried[value].row))

        grid = [math.log(1.0 - value) for value in values]
        errors: list[float] = []
        for rest in grid:
            errors.append(error(rest))
            if len(errors) > 2 and errors[-1] > errors[-2] > errors[-3]:
                break
        best = errors.index(min(errors))
        low = grid[min(best + 1, len(grid) - 1)]
        high = grid[max(best - 1, 0)]
        scipy.optimize.minimize_scalar(
            error, bounds=(low, high), method="bounded",
            options={"xatol": _LAMBDA_TOLERANCE, "maxiter": 8},
        )  # fmt: skip
        return self._account_in_full(
            min(tried.values(), key=lambda candidate: self.value(candidate.row))
        )

    def _by_memory(self, family: Family) -> _Candidate:
        """A number of kept vectors: the default, or as many as are allowed."""
        if self._limit < 1:
            raise Excluded("it keeps at least one vector.")
        assert family.option is not None
        number = min(family.option.default or 1, self._limit)
        return self._candidate(f"{family.name}:{number}")

    def _refuse_one_band(self, largest: int) -> None:
        if largest > 1:
            return
        if self._limit < 1:
            raise Excluded("it keeps at least one vector.")
        raise Excluded("only one band fits: that is identity.")

    def _within_limit(self, candidate: _Candidate) -> _Candidate:
        needed = candidate.row.memory_vectors
        if needed > self._limit:
            raise Excluded(
                f"{candidate.row.mechanism} keeps {needed} vectors, found "
                f"max_memory_vectors = {self._limit}."
            )
        return candidate

    def _candidate(self, name: str, rough: bool = False) -> _Candidate:
        family_name, options = registry.parse(name)
        family = registry.family_of(family_name)
        began = time.perf_counter()
        if isinstance(self._sampling, Scheme):
            strategy, participation = self._in_cycles(family, options)
        else:
            participation = self._sampling
            strategy = registry.build_strategy(
                family.name,
                self._workload,
                participation,
                **self._with_goal(family, options),
            )
        seconds = time.perf_counter() - began
        return self._accounted(name, strategy, participation, seconds, rough)

    def _in_cycles(
        self, family: Family, options: Mapping[str, Any]
    ) -> tuple[Strategy, Participation]:
        """A strategy, and cyclic sampling with as many parts as it has bands."""
        assert isinstance(self._sampling, Scheme)
        participation = self._sampling.participation(options.get("bands", 1))
        strategy = registry.build_strategy(
            family.name,
            self._workload,
            participation,
            **self._with_goal(family, options),
        )
        return strategy, participation

    def _with_goal(self, family: Family, options: Mapping[str, Any]) -> dict[str, Any]:
        if "objective" not in family.options:
            return {**options}
        return {**options, "objective": self._objective}

    def _accounted(
        self,
        name: str,
        strategy: Strategy,
        participation: Participation,
        seconds: float,
        rough: bool,
    ) -> _Candidate:
        epsilon, delta = self._budget
        simulated = participation.is_simulated
        calibrator = calibration.for_budget(
            participation,
            epsilon,
            delta,
            self._confidence if simulated and not rough else None,
            num_draws=_SEARCH_DRAWS if simulated and rough else None,
        )
        row = comparison.row(
            name, strategy, self._workload, participation, calibrator, seconds
        )
        return _Candidate(strategy, participation, row)

    def _account_in_full(self, found: _Candidate) -> _Candidate:
        """The same candidate, accounted for in full."""
        if not self._is_amplified:
            return found
        name, seconds = found.row.mechanism, found.row.seconds
        return self._accounted(
            name, found.strategy, found.participation, seconds, rough=False
        )


def _rounded_lambda(value: float) -> float:
    """Three digits of `1 - lambda`: names stay short, errors do not change."""
    return float(f"{1.0 - float(f'{1.0 - value:.3g}'):.8g}")


def _named(family: Family, value: float, suffix: str) -> str:
    return f"{family.name}:{_rounded_lambda(value):.8g}{suffix}"
