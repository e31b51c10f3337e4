"""One mechanism with its best parameters, under one sampling and budget."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tf_bandmf.participation import Participation
from tf_bandmf.participation.scheme import Scheme
from tf_bandmf.planning import calibration, comparison, parameter_search
from tf_bandmf.strategies import Family, Strategy, registry
from tf_bandmf.workloads import Workload

_MOST_REGENERATIONS = 31
_BANDS_OF_BUDGET = 16
# A refinement of a family that is worse than the best by more than this is left out.
_REFINEMENT = 1.1


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A mechanism with all its parameters, and its row."""

    strategy: Strategy
    participation: Participation
    row: comparison.Row


class Excluded(ValueError):
    """A mechanism cannot be compared; the message says why."""


class Search:
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
        is_draft: bool = False,
        is_limit_of_searches: bool = False,
    ) -> None:
        self._is_draft = is_draft
        # What is named with its size may then keep more.
        self._is_limit_of_searches = is_limit_of_searches
        if isinstance(sampling, Scheme) and not sampling.is_cyclic:
            sampling = sampling.participation()
        self._sampling = sampling
        self._workload, self._limit = workload, limit
        self._budget, self._confidence = (epsilon, delta), confidence
        self._rough = calibration.Rough(epsilon, delta)
        self._objective = objective
        self._is_amplified = isinstance(sampling, Participation) and (
            sampling.is_simulated
        )
        # Noise takes a simulation or a composition of privacy losses.
        self._is_costly = isinstance(sampling, Scheme) or sampling.is_amplified
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

    def best_of(self, name: str, is_auto: bool) -> Candidate:
        """The best candidate of a mechanism, accounted for like the final plan.

        A draft is accounted for roughly.

        Raises:
          Excluded: if there is none.
        """
        family_name, options = registry.parse(name)
        family = registry.family_of(family_name)
        self._check_family(family)
        suffix = ":normalized" if options.get("column_normalized") else ""
        suffix += ":max" if options.get("objective") == "max" else ""
        has_value = any(option.name in options for option in family.numbers)
        try:
            second = family.second
            if self._is_amplified and second is not None and "bands" in options:
                if second.name not in options:
                    name = f"{family.name}:{options['bands']}"
                    return self._account_in_full(
                        self._searched_number(name, second.grid, suffix)
                    )
            if has_value or family.option is None:
                return self._within_limit(self._candidate(name))
            if isinstance(self._sampling, Scheme) or self._is_amplified:
                return self._searched(family, suffix, is_auto)
            return self._unamplified(family, suffix, is_auto)
        except Excluded:
            raise
        except (ValueError, ArithmeticError) as error:
            if is_auto:
                raise Excluded(str(error)) from error
            raise

    def is_draft(self, found: Candidate) -> bool:
        """Whether a candidate is but a draft, as good as a comparison needs."""
        return self._is_draft and (self._is_costly or _is_optimized_roughly(found))

    def in_full(self, found: Candidate) -> Candidate:
        """The same mechanism, optimized and accounted for in full."""
        self._is_draft = False
        if _is_optimized_roughly(found):
            return self._candidate(found.row.mechanism)
        return self._account_in_full(found)

    def refined(self, family: Family, best: Sequence[Candidate]) -> str:
        """The name under which a refinement is tried, after the others.

        Raises:
          Excluded: if the family that it refines is far from the best.
        """
        assert family.refines is not None
        coarse = [c for c in best if c.strategy.family == family.refines]
        if not coarse or not self._workload.is_toeplitz:
            return family.name
        least = min(self.value(candidate.row) for candidate in best)
        excess = self.value(coarse[0].row) / least
        if excess > _REFINEMENT:
            raise Excluded(
                f"{coarse[0].row.mechanism} has {100.0 * (excess - 1.0):.3g}% more than "
                f"the best, and general columns gain a few percent at most. Name "
                f"{family.name} to plan it."
            )
        if isinstance(self._sampling, Scheme):
            return f"{family.name}:{coarse[0].strategy.parameters['bands']}"
        return family.name

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

    def _unamplified(self, family: Family, suffix: str, is_auto: bool) -> Candidate:
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
            return self._candidate(_named(family.name, value, suffix))
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
        return _labelled(min(found, key=lambda candidate: self.value(candidate.row)))

    def _searched(self, family: Family, suffix: str, is_auto: bool) -> Candidate:
        """Under amplification: by calibrated noise."""
        assert family.option is not None
        if family.option.grid:
            return self._account_in_full(
                self._searched_number(family.name, family.option.grid, suffix)
            )
        if not family.has_bands:
            return self._by_memory(family)
        largest = self._largest_size(family, is_auto)
        self._refuse_one_band(largest)
        if family.needs_budget:
            # Each number of bands is a search of its own.
            return self._candidate(f"{family.name}:{min(largest, _BANDS_OF_BUDGET)}")
        best: Candidate | None = None
        near: float | None = None
        # The error falls with the number of bands, then it rises.
        for size in registry.powers_of_two(largest)[1:]:
            name = f"{family.name}:{size}"
            if family.second is not None:
                found = self._searched_number(name, family.second.grid, suffix, near)
                near = found.strategy.parameters[family.second.name.rstrip("_")]
            else:
                found = self._candidate(f"{name}{suffix}", rough=True)
            if best is not None and self.value(found.row) > self.value(best.row):
                break
            best = found
        assert best is not None
        return self._account_in_full(best)

    def _searched_number(
        self,
        prefix: str,
        values: Sequence[float],
        suffix: str,
        near: float | None = None,
    ) -> Candidate:
        """The last number of a name, by rough noise.

        arXiv:2601.22334, section 5.1: coarse on a grid, then between its neighbors. From
        the value of the grid that is nearest to `near`, or from its middle, downhill:
        every value costs a simulation.
        """
        tried: dict[float, Candidate | None] = {}

        def error(log_rest: float) -> float:
            value = _rounded_lambda(1.0 - math.exp(log_rest))
            if value not in tried:
                name = _named(prefix, value, suffix)
                tried[value] = self._if_possible(name, is_certain=value == 0.0)
            found = tried[value]
            return math.inf if found is None else math.log(self.value(found.row))

        grid = [math.log(1.0 - value) for value in values]
        start = len(grid) // 2
        if near is not None:
            start = int(np.argmin(np.abs(np.array(grid) - math.log(1.0 - near))))
        parameter_search.search(error, grid, start)
        possible = [found for found in tried.values() if found is not None]
        return min(possible, key=lambda candidate: self.value(candidate.row))

    def _if_possible(self, name: str, is_certain: bool) -> Candidate | None:
        """None where `C` overflows or has negative entries, as for gamma near 1."""
        try:
            with np.errstate(all="ignore"):
                return self._candidate(name, rough=True)
        except (ValueError, ArithmeticError):
            if is_certain:
                raise
            return None

    def _by_memory(self, family: Family) -> Candidate:
        """A number of kept vectors: the default, or as many as are allowed."""
        if self._limit < 1:
            raise Excluded("it keeps at least one vector.")
        assert family.option is not None
        number = min(family.option.default or 1, self._limit)
        # It may need fewer.
        return _labelled(self._candidate(f"{family.name}:{number}"))

    def _refuse_one_band(self, largest: int) -> None:
        if largest > 1:
            return
        if self._limit < 1:
            raise Excluded("it keeps at least one vector.")
        raise Excluded("only one band fits: that is identity.")

    def _within_limit(self, candidate: Candidate) -> Candidate:
        needed = candidate.row.memory_vectors
        if needed > self._limit and not self._is_limit_of_searches:
            raise Excluded(
                f"{candidate.row.mechanism} keeps {needed} vectors, found "
                f"max_memory_vectors = {self._limit}."
            )
        return candidate

    def _candidate(self, name: str, rough: bool = False) -> Candidate:
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
                self._is_draft,
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
        participation.check_accounting(self._workload.num_steps)
        strategy = registry.build_strategy(
            family.name,
            self._workload,
            participation,
            self._is_draft,
            **self._with_goal(family, options),
        )
        return strategy, participation

    def _with_goal(self, family: Family, options: Mapping[str, Any]) -> dict[str, Any]:
        goal = dict(options)
        if family.needs_budget:
            goal.update(zip(("epsilon", "delta"), self._budget))
        if "objective" in family.options:
            goal.setdefault("objective", self._objective)
        return goal

    def _accounted(
        self,
        name: str,
        strategy: Strategy,
        participation: Participation,
        seconds: float,
        rough: bool,
    ) -> Candidate:
        rough = rough or (self._is_draft and self._confidence is None)
        if participation.is_simulated and not rough:
            # As plans hold it: they need not simulate again.
            strategy = strategy.in_float32()
        row = comparison.row(
            name,
            strategy,
            self._workload,
            participation,
            self._calibrator(participation, rough),
            seconds,
        )
        return Candidate(strategy, participation, row)

    def _calibrator(
        self, participation: Participation, rough: bool
    ) -> calibration.Calibrator:
        if rough and self._is_costly:
            return self._rough.under(participation)
        confidence = self._confidence if participation.is_simulated else None
        return calibration.for_budget(participation, *self._budget, confidence)

    def _account_in_full(self, found: Candidate) -> Candidate:
        """The same candidate, accounted for in full."""
        if not self._is_costly or self._is_draft:
            return found
        name, seconds = found.row.mechanism, found.row.seconds
        return self._accounted(
            name, found.strategy, found.participation, seconds, rough=False
        )


def _is_optimized_roughly(draft: Candidate) -> bool:
    return registry.family_of(draft.strategy.family).draft is not None


def _labelled(found: Candidate) -> Candidate:
    """With all its numbers in its name, also those that the family chose."""
    label = registry.specification(found.strategy)
    row = dataclasses.replace(found.row, mechanism=label)
    return dataclasses.replace(found, row=row)


def _rounded_lambda(value: float) -> float:
    """Three digits of `1 - lambda`: names stay short, errors do not change."""
    return float(f"{1.0 - float(f'{1.0 - value:.3g}'):.8g}")


def _named(prefix: str, value: float, suffix: str) -> str:
    return f"{prefix}:{_rounded_lambda(value):.8g}{suffix}"
