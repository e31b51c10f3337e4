"""Computes the joint guarantee of several runs and other releases on the same data.

    joint = tf_bandmf.compose([first_plan, second_plan])
    joint.epsilon(1e-5), joint.delta(3.0)
    print(joint.statement())

Gaussian mechanisms compose exactly: together they are one, with
`1 / sigma^2 = sum_i 1 / sigma_i^2` (Dong, Roth, Su, 2019, arXiv:1905.02383, Corollary
3.3), also where later runs are chosen by the results of earlier ones. Everything else
composes by privacy losses that dominate it (Zhu, Dong, Wang, 2022, arXiv:2106.08567,
Theorem 10): its own privacy loss where this is known, for samples by `accounting.tilted`;
otherwise that of the worst mechanism with all that is known: a pair (epsilon, delta), a
rho, or the Gaussian mechanism that a run is without its amplification. Basic composition
is taken where it is smaller.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dp_accounting.pld import privacy_loss_distribution

from tf_bandmf.accounting import gaussian, profiles
from tf_bandmf.accounting.checks import check_delta, check_positive
from tf_bandmf.accounting.cyclic_poisson import ComposedQueries
from tf_bandmf.accounting.guarantee import KINDS, REPLACE_ONE, ZERO_OUT, Guarantee
from tf_bandmf.planning.plan import Plan
from tf_bandmf.planning.release import REPLACE_ONLY, Loss, Release
from tf_bandmf.planning.statement import PrivacyStatement

GAUSSIAN = "composition of Gaussian mechanisms (exact)"
UNAMPLIFIED = "composition of Gaussian mechanisms, without amplification"
BASIC = "basic composition of what each part guarantees alone"
LOSSES = "composition of privacy loss distributions (dp-accounting)"
ZCDP = "sum of rho of zCDP"
QUERIES = "composition of Gaussian queries on samples (tilted Fourier transform)"
# Discretization of privacy losses, for epsilons up to 10; larger ones have a coarser one.
# Losses beyond the largest are infinite: they say nothing then.
_INTERVAL, _FINE, _LARGEST = 1e-4, 10.0, 400.0
# What the Fourier transforms of privacy losses may err by in delta, absolute: the same as
# `accounting.cyclic_poisson` takes for 450 queries. Smaller deltas are not asked for.
_ROUNDING, _SMALLEST = 1e-12, 2e-12
# Below it queries of several kinds are composed by tilted transforms, whose errors are
# relative; above it those of dp-accounting, which take a quarter of the time, suffice.
_TILTED = 1e-7
# How much less epsilon must be, relative, for a number that is worth less.
_WORTH_IT = {"exact": 0.0, "bound": 0.0, "estimate": 1e-2}


class Bound(NamedTuple):
    """A joint epsilon, by which theorem, and what it is worth."""

    value: float
    method: str
    kind: str
    confidence: float | None


@dataclasses.dataclass(frozen=True, eq=False)
class JointGuarantee:
    """The joint guarantee of several runs and releases on the same data; see `compose`.

    Formal guarantee: all outputs together are (epsilon(delta), delta)-DP, for releases
    that are made one after another, each chosen in any way from the outputs of those
    before it, with guarantees that were fixed in advance.

    Attributes:
      parts: one for each run or release.
      replaced: whether it is for neighbors in which one unit is replaced by another; else
        for zero-out.
    """

    parts: tuple[Release, ...]
    replaced: bool

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans of the runs among the parts."""
        return tuple(part.plan for part in self.parts if part.plan is not None)

    @property
    def adjacency(self) -> str:
        """Which data sets count as neighbors; see `compose`."""
        if not self.replaced:
            return ZERO_OUT
        is_only = any(part.adjacency == "replace-one" for part in self.parts)
        return REPLACE_ONLY if is_only else REPLACE_ONE

    @property
    def zcdp_rho(self) -> float | None:
        """Rho of zCDP of all, without amplification, under `adjacency`; None if unknown.

        Rhos add up (Bun and Steinke, 2016, arXiv:1605.02065, Lemma 1.7).
        """
        return _sum(part.zcdp(self.replaced) for part in self.parts)

    def epsilon(self, delta: float) -> float:
        """The joint epsilon at delta.

        Raises:
          ValueError: if delta is not in (0, 1), or no meaningful epsilon is found.
        """
        return self.guarantee_at(delta).epsilon

    def delta(self, epsilon: float) -> float:
        """The joint delta at epsilon.

        Raises:
          ValueError: if epsilon is not finite and > 0.
        """
        check_positive("epsilon", epsilon)
        deltas = [1.0]
        if self.gaussian_noise is not None:
            deltas.append(gaussian.gaussian_delta(self.gaussian_noise, epsilon))
        if self.stated is not None and epsilon >= self.stated[0]:
            deltas.append(self.stated[1])
        queries = self._queries
        if queries is not None:
            deltas.append(queries.delta(epsilon, 1.0))
        if self._has_losses and (queries is None or len(queries.kinds) > 1):
            loss = _composed_loss(self.parts, self.replaced, self._interval)
            deltas.append(float(loss.get_delta_for_epsilon(epsilon)) + _ROUNDING)
        return min(delta for delta in deltas if delta >= 0.0)

    def guarantee_at(self, delta: float) -> Guarantee:
        """The joint (epsilon, delta)-DP, and how certain the numbers are.

        Its kind is "exact" if all parts are Gaussian mechanisms of exactly known
        sensitivity; "estimate" if the number rests on an estimate; otherwise "bound".
        Simulated bounds hold together with probability at least one minus the sum of
        the probabilities that each fails.

        Raises:
          ValueError: if delta is not in (0, 1), or no meaningful epsilon is found.
        """
        best = self.bound_at(delta)
        if best is None:
            raise ValueError(
                f"No meaningful epsilon is known for these {len(self.parts)} releases at "
                f"delta = {delta}. Use a larger delta, or fewer of them."
            )
        if best.value <= 0.0:
            raise ValueError(
                f"delta must be so small that epsilon is > 0, found {delta}: the "
                f"releases are (0, {delta})-DP."
            )
        return Guarantee(
            epsilon=best.value,
            delta=delta,
            kind=best.kind,
            accountant=best.method,
            adjacency=self.adjacency,
            confidence=best.confidence,
            zcdp_rho=self.zcdp_rho,
        )

    def bound_at(self, delta: float) -> Bound | None:
        """The best epsilon at delta, also one that is <= 0; None if none is known.

        Raises:
          ValueError: if delta is not in (0, 1).
        """
        check_delta(delta)
        best = None
        order = lambda bound: (KINDS.index(bound.kind), bound.value)  # noqa: E731
        for bound in sorted(self._epsilons(delta), key=order):
            # An estimate, or a bound of some confidence, must be worth it.
            if best is None or bound.value < best.value * (1.0 - _WORTH_IT[bound.kind]):
                best = bound
        return best if best is not None and math.isfinite(best.value) else None

    def statement(
        self, delta: float | None = None, unit: str | None = None
    ) -> PrivacyStatement:
        """The privacy statement of all parts together.

        Args:
          delta: by default the largest delta that the parts state.
          unit: as for `Plan.statement`; by default that of the plans.

        Raises:
          ValueError: as for `guarantee_at`; if the unit is not a text of one line, or
            the plans have different units and none is given; or if no part has a delta
            or a unit, and none is given.
        """
        if delta is None:
            pairs = [part.stated(self.replaced) for part in self.parts]
            delta = max((pair[1] for pair in pairs if pair is not None), default=0.0)
            if delta == 0.0:
                raise ValueError("delta must be given: none of the parts states one.")
        if unit is None:
            units = sorted({plan.unit for plan in self.plans})
            if len(units) != 1:
                whose = (
                    f"hide different units: {', '.join(units)}" if units else "are none"
                )
                raise ValueError(
                    f"unit must be given: the plans {whose}. Name the unit that all of "
                    f"the releases hide."
                )
            unit = units[0]
        plans, others = self.plans, len(self.parts) - len(self.plans)
        covered = f"{len(plans)} training run(s) on the same data"
        if others:
            covered = (
                f"{len(plans)} training run(s) and {others} release(s) made elsewhere, on "
                f"the same data; what is said of the latter is their makers' to show"
            )
        runs = enumerate((part.describe() for part in self.parts), start=1)
        uses = dict.fromkeys(plan.participation.describe() for plan in plans)
        noise = self.gaussian_noise
        return PrivacyStatement(
            guarantee=self.guarantee_at(delta),
            # A rho alone is no Gaussian mechanism.
            mu=None if noise is None else 1.0 / noise,
            unit=unit,
            plans=plans,
            sampling="",
            participation=" ".join(uses),
            covered=covered,
            scope=" for all runs together",
            output="all noisy gradients of all runs"
            + " and the outputs of the other releases" * bool(others),
            mechanism=("Runs", " ".join(f"({i}) {text}" for i, text in runs)),
            remarks=(),
            proviso="",
        )

    @functools.cached_property
    def gaussian_noise(self) -> float | None:
        """Noise multiplier of the joint Gaussian mechanism, unamplified; or None."""
        return _noise_of(self.parts, self.replaced)

    @functools.cached_property
    def stated(self) -> tuple[float, float] | None:
        """Basic composition of what each states."""
        pairs = [part.stated(self.replaced) or (None, None) for part in self.parts]
        epsilon, delta = (_sum(column) for column in zip(*pairs))
        return None if epsilon is None or delta is None else (epsilon, delta)

    def _epsilons(self, delta: float) -> list[Bound]:
        bounds = []
        if self.gaussian_noise is not None:
            exact = all(
                part.is_gaussian and part.kind == "exact" for part in self.parts
            )
            try:
                value = gaussian.gaussian_epsilon(self.gaussian_noise, delta)
            except ValueError:  # beyond any meaning
                value = math.inf
            name, kind = (GAUSSIAN, "exact") if exact else (UNAMPLIFIED, "bound")
            bounds.append(Bound(value, name, kind, None))
        elif self.zcdp_rho is not None:
            # Bun and Steinke, 2016, arXiv:1605.02065, Proposition 1.3.
            value = self.zcdp_rho + 2.0 * math.sqrt(-self.zcdp_rho * math.log(delta))
            bounds.append(Bound(value, ZCDP, "bound", None))
        # Where losses cannot tell, the others may.
        with contextlib.suppress(ValueError, ArithmeticError, MemoryError):
            bounds += self._by_losses(delta)
        stated = self.stated
        # Where it is no better, the others say more of what the number is worth.
        least = min((bound.value for bound in bounds), default=math.inf)
        if stated is not None and stated[1] <= delta * (1.0 + 1e-9):
            if stated[0] < (1.0 - 1e-6) * least:
                bounds.append(Bound(stated[0], BASIC, *_certainty(self.parts)))
        return [bound for bound in bounds if not math.isnan(bound.value)]

    @functools.cached_property
    def _queries(self) -> ComposedQueries | None:
        """The accountant of all together, if they are samples that noise is added to."""
        queries = [part.queries(self.replaced) for part in self.parts]
        if None in queries or all(part.is_gaussian for part in self.parts):
            return None
        return ComposedQueries(tuple(one for several in queries for one in several))  # type: ignore[union-attr]

    @property
    def _has_losses(self) -> bool:
        is_gaussian = all(part.is_gaussian for part in self.parts)
        return not is_gaussian and self._scale <= _LARGEST

    @functools.cached_property
    def _scale(self) -> float:
        """About the epsilon that is to be expected, by what is known quickly."""
        expected = [self.stated[0]] if self.stated is not None else []
        if self.zcdp_rho is not None:
            expected.append(self.zcdp_rho + 8.0 * math.sqrt(self.zcdp_rho))
        # At least that of the exact ones.
        gaussians = [part for part in self.parts if part.is_gaussian]
        noise = _noise_of(gaussians, self.replaced)
        least = gaussian.zcdp_rho(noise) if noise is not None else 0.0
        return max(min(expected, default=_FINE), least, _INTERVAL)

    @property
    def _interval(self) -> float:
        """A power of two times the finest one."""
        coarser = math.ceil(math.log2(self._scale / _FINE))
        return float(_INTERVAL * 2.0 ** max(0, coarser))

    def _by_losses(self, delta: float) -> Iterator[Bound]:
        counted = [part for part in self.parts if not part.is_gaussian]
        queries = self._queries
        if queries is not None and (len(queries.kinds) == 1 or delta < _TILTED):
            value = queries.epsilon(delta, 1.0)
            yield Bound(value, QUERIES, *_certainty(counted))
        elif self._has_losses and delta > _SMALLEST:
            bounds = {self.parts: counted}
            proven = [part for part in counted if not part.is_simulated]
            if len(proven) < len(counted):
                # What is simulated counts as the Gaussian mechanism that it is, too.
                bounds[tuple(part.proven() for part in self.parts)] = proven
            for parts, rests_on in bounds.items():
                loss = _composed_loss(parts, self.replaced, self._interval)
                value = float(loss.get_epsilon_for_delta(delta - _ROUNDING))
                yield Bound(value, LOSSES, *_certainty(rests_on))


def compose(
    plans: Iterable[Plan | Release], adjacency: str | None = None
) -> JointGuarantee:
    """The joint guarantee of several runs and other releases on the same data.

    A release that is stated for other neighbors counts with its guarantee for neighbors
    of neighbors: under replacements with half the Gaussian noise and four times the rho.

    Args:
      plans: one plan for each run (list a plan twice if it was run twice), and a `Release`
        for each release made elsewhere.
      adjacency: "zero-out" or "replace-one"; by default "replace-one" if all parts hold
        for it, or one is stated for nothing else.

    Raises:
      TypeError: if something else is given.
      ValueError: if there are none, or one does not hold for zero-out and has to.
    """
    if isinstance(plans, (Plan, Release)) or not isinstance(plans, Iterable):
        raise TypeError(
            f"plans must be a list with one plan for each run, found {plans!r}."
        )
    given = tuple(plans)
    if not given:
        raise ValueError("There is no run to compose: plans must not be empty.")
    for one in given:
        if not isinstance(one, (Plan, Release)):
            raise TypeError(
                f"plans must be tf_bandmf.Plan objects, or a tf_bandmf.Release for what "
                f"was made elsewhere, found {one!r}."
            )
    parts = tuple(Release.of_plan(p) if isinstance(p, Plan) else p for p in given)
    stated = {part.adjacency for part in parts}
    replaced = "replace-one" in stated or "zero-out" not in stated
    allowed = [None, "replace-one"] + ["zero-out"] * ("replace-one" not in stated)
    if adjacency not in allowed:
        raise ValueError(
            f"adjacency must be one of {allowed} for what is composed, found {adjacency!r}."
        )
    if adjacency is not None:
        replaced = adjacency == "replace-one"
    return JointGuarantee(parts, replaced)


def _sum(values: Iterable[float | None]) -> float | None:
    """None if any is."""
    terms = list(values)
    return None if None in terms else math.fsum(terms)  # type: ignore[arg-type]


def _noise_of(parts: Iterable[Release], replaced: bool) -> float | None:
    """Noise of the one Gaussian mechanism that all parts amount to, or None."""
    noises = (part.gaussian_noise(replaced) for part in parts)
    precision = _sum(None if noise is None else noise**-2 for noise in noises)
    return 1.0 / math.sqrt(precision) if precision else None


def _certainty(parts: Iterable[Release]) -> tuple[str, float | None]:
    """Kind and confidence of what rests on the numbers of all these parts."""
    parts = tuple(parts)
    risk = math.fsum(part.risk for part in parts)
    if any(part.kind == "estimate" for part in parts) or risk > 0.5:
        return "estimate", None
    return "bound", 1.0 - risk if risk else None


@functools.lru_cache(maxsize=8)
def _composed_loss(parts: tuple[Release, ...], replaced: bool, interval: float) -> Loss:
    """A loss that dominates all parts together, discretized by `interval`."""
    noise = _noise_of((part for part in parts if part.is_gaussian), replaced)
    losses: list[Loss] = [privacy_loss_distribution.identity(interval)]
    if noise:
        losses.append(
            privacy_loss_distribution.from_gaussian_mechanism(
                noise, value_discretization_interval=interval
            )
        )
    rho = _sum(part.zcdp(replaced) for part in parts if part.is_zcdp)
    if rho:
        profile = profiles.zcdp_profile(rho)
        losses.append(profiles.dominating_loss(profile, interval))
    for part, count in Counter(parts).items():
        if not (part.is_gaussian or part.is_zcdp):
            losses += _losses_of(part, replaced, interval, count)
    return functools.reduce(lambda total, loss: total.compose(loss), losses)


# Balances that differ in one run have the losses of the others in common.
_losses_of = functools.lru_cache(maxsize=64)(Release.losses)
