"""Computes the joint guarantee of several runs and other releases on the same data.

    joint = tf_bandmf.compose([first_plan, second_plan])
    joint.epsilon(1e-5), joint.delta(3.0)
    print(joint.statement())

Gaussian mechanisms compose exactly: together they are one, with
`1 / sigma^2 = sum_i 1 / sigma_i^2` (Dong, Roth, Su, 2019, arXiv:1905.02383, Corollary
3.3), also where later runs are chosen by the results of earlier ones. Everything else
composes by privacy losses that dominate it (Zhu, Dong, Wang, 2022, arXiv:2106.08567,
Theorem 10): its own privacy loss where this is known; otherwise that of the worst
mechanism with all that is known: a pair (epsilon, delta), Renyi divergences, or the
Gaussian mechanism that a run is without its amplification. Bounds by Renyi divergences
alone and by basic composition are taken where they are smaller.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dp_accounting import rdp

from tf_bandmf.accounting import gaussian
from tf_bandmf.accounting.checks import check_delta, check_positive
from tf_bandmf.accounting.guarantee import KINDS, REPLACE_ONE, ZERO_OUT, Guarantee
from tf_bandmf.planning.card import Facts
from tf_bandmf.planning.joint_losses import (
    certainty,
    composed_loss,
    noise_of,
    not_simulated,
    renyi,
    sum_of,
)
from tf_bandmf.planning.parts import Loss, Part, Run
from tf_bandmf.planning.plan import Plan
from tf_bandmf.planning.statement import (
    GENERATORS,
    NOT_COVERED,
    WITHOUT_SAMPLING,
    Statement,
    check_unit,
    sentence,
    sentences,
)

GAUSSIAN = "composition of Gaussian mechanisms (exact)"
UNAMPLIFIED = "composition of Gaussian mechanisms, without amplification"
BASIC = "basic composition of what each part guarantees alone"
LOSSES = "composition of privacy loss distributions (dp-accounting)"
RENYI = "composition by Renyi DP (dp-accounting)"
REPLACE_ONLY = "Replace-one: one unit is replaced by any other."
# Discretization of privacy losses, for epsilons up to 10; larger ones have a coarser one.
# Losses beyond the largest are infinite: they say nothing then.
_INTERVAL, _FINE, _LARGEST = 1e-4, 10.0, 400.0
# What the Fourier transforms of privacy losses may err by in delta, absolute: the same as
# `accounting.cyclic_poisson` takes for 450 queries. Smaller deltas are not asked for.
_ROUNDING, _SMALLEST = 1e-12, 2e-12
# How much less epsilon must be, relative, for a number that is worth less.
_WORTH_IT = {"exact": 0.0, "bound": 0.0, "estimate": 1e-2}


class _Bound(NamedTuple):
    value: float
    accountant: str
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
    """

    parts: tuple[Part, ...]

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans of the runs among the parts."""
        return tuple(part.plan for part in self.parts if isinstance(part, Run))

    @property
    def adjacency(self) -> str:
        """The adjacency of all parts: replace-one if all have it, else zero-out.

        A release made elsewhere that is stated only for replacements makes it
        replace-one. A part that is stated for zero-out then counts with its guarantee
        for neighbors of neighbors: half the Gaussian noise, four times the rho.
        """
        if not self._replaced:
            return ZERO_OUT
        is_run = all(isinstance(part, Run) for part in self.parts if part.replaces)
        return REPLACE_ONE if is_run else REPLACE_ONLY

    @property
    def zcdp_rho(self) -> float | None:
        """Rho of zCDP of all, without amplification, under `adjacency`; None if unknown.

        Rhos add up (Bun and Steinke, 2016, arXiv:1605.02065, Lemma 1.7).
        """
        return sum_of(part.zcdp(self._replaced) for part in self.parts)

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
        found = [1.0]
        if self.gaussian_noise is not None:
            found.append(gaussian.gaussian_delta(self.gaussian_noise, epsilon))
        stated = self._stated
        if stated is not None and epsilon >= stated[0]:
            found.append(stated[1])
        if self._has_losses:
            found.append(float(self._loss.get_delta_for_epsilon(epsilon)) + _ROUNDING)
        if self._renyi is not None:
            accountant, apart = self._renyi
            found.append(apart + (1.0 - apart) * float(accountant.get_delta(epsilon)))
        return min(delta for delta in found if delta >= 0.0)

    def guarantee_at(self, delta: float) -> Guarantee:
        """The joint (epsilon, delta)-DP, and how certain the numbers are.

        Its kind is "exact" if all parts are Gaussian mechanisms of exactly known
        sensitivity; "estimate" if the number rests on an estimate; otherwise "bound".
        Simulated bounds hold together with probability at least one minus the sum of
        the probabilities that each fails.

        Raises:
          ValueError: if delta is not in (0, 1), or no meaningful epsilon is found.
        """
        check_delta(delta)
        best = None
        for bound in sorted(self._epsilons(delta), key=_order):
            # An estimate, or a bound of some confidence, must be worth it.
            if best is None or bound.value < best.value * (1.0 - _WORTH_IT[bound.kind]):
                best = bound
        if best is None or not math.isfinite(best.value):
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
            accountant=best.accountant,
            adjacency=self.adjacency,
            confidence=best.confidence,
            zcdp_rho=self.zcdp_rho,
        )

    def statement(
        self, delta: float | None = None, unit: str | None = None
    ) -> JointStatement:
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
            pairs = [part.stated(self._replaced) for part in self.parts]
            delta = max((pair[1] for pair in pairs if pair is not None), default=0.0)
            if delta == 0.0:
                raise ValueError("delta must be given: none of the parts states one.")
        if unit is None:
            units = sorted({plan.unit for plan in self.plans})
            if len(units) != 1:
                found = (
                    f"hide different units: {', '.join(units)}" if units else "are none"
                )
                raise ValueError(
                    f"unit must be given: the plans {found}. Name the unit that all of "
                    f"the releases hide."
                )
            unit = units[0]
        check_unit(unit)
        return JointStatement(self, self.guarantee_at(delta), unit, (), "")

    @property
    def _replaced(self) -> bool:
        return all(part.replaces for part in self.parts) or not all(
            part.holds_for_zero_out for part in self.parts
        )

    @functools.cached_property
    def gaussian_noise(self) -> float | None:
        """Noise multiplier of the joint Gaussian mechanism, unamplified; or None."""
        return noise_of(self.parts, self._replaced)

    @functools.cached_property
    def _stated(self) -> tuple[float, float] | None:
        """Basic composition of what each states."""
        pairs = [part.stated(self._replaced) for part in self.parts]
        found = [pair for pair in pairs if pair is not None]
        if len(found) < len(pairs):
            return None
        return math.fsum(pair[0] for pair in found), math.fsum(p[1] for p in found)

    def _epsilons(self, delta: float) -> list[_Bound]:
        found = []
        if self.gaussian_noise is not None:
            exact = all(
                part.is_gaussian and part.kind == "exact" for part in self.parts
            )
            try:
                value = gaussian.gaussian_epsilon(self.gaussian_noise, delta)
            except ValueError:  # beyond any meaning
                value = math.inf
            name, kind = (GAUSSIAN, "exact") if exact else (UNAMPLIFIED, "bound")
            found.append(_Bound(value, name, kind, None))
        counted = [part for part in self.parts if not part.is_gaussian]
        if self._has_losses and delta > _SMALLEST:
            for loss, kind, confidence in self._loss_bounds(counted):
                value = float(loss.get_epsilon_for_delta(delta - _ROUNDING))
                found.append(_Bound(value, LOSSES, kind, confidence))
        if self._renyi is not None and delta > self._renyi[1]:
            accountant, apart = self._renyi
            value = float(accountant.get_epsilon((delta - apart) / (1.0 - apart)))
            found.append(_Bound(value, RENYI, *certainty(not_simulated(counted))))
        stated = self._stated
        # Where it is no better, the others say more of what the number is worth.
        least = min((bound.value for bound in found), default=math.inf)
        if stated is not None and stated[1] <= delta:
            if stated[0] < (1.0 - 1e-6) * least:
                found.append(_Bound(stated[0], BASIC, *certainty(self.parts)))
        return [bound for bound in found if not math.isnan(bound.value)]

    @property
    def _has_losses(self) -> bool:
        if self._scale > _LARGEST:
            return False
        return any(not part.is_gaussian for part in self.parts)

    @functools.cached_property
    def _scale(self) -> float:
        """About the epsilon that is to be expected, by what is known quickly."""
        known = [self._stated[0]] if self._stated is not None else []
        if self.zcdp_rho is not None:
            known.append(self.zcdp_rho + 8.0 * math.sqrt(self.zcdp_rho))
        # At least that of the exact ones.
        noise = noise_of([p for p in self.parts if p.is_gaussian], self._replaced)
        least = gaussian.zcdp_rho(noise) if noise is not None else 0.0
        return max(min(known, default=_FINE), least, _INTERVAL)

    @property
    def _interval(self) -> float:
        """A power of two times the finest one."""
        coarser = math.ceil(math.log2(self._scale / _FINE))
        return float(_INTERVAL * 2.0 ** max(0, coarser))

    def _loss_bounds(
        self, counted: list[Part]
    ) -> Iterator[tuple[Loss, str, float | None]]:
        """Losses of all together, and what a number that rests on each is worth."""
        proven = not_simulated(counted)
        if len(proven) < len(counted):
            # What is simulated counts as the Gaussian mechanism that it is, too.
            yield self._proven_loss, *certainty(proven)
        yield self._loss, *certainty(counted)

    @functools.cached_property
    def _loss(self) -> Loss:
        """A loss that dominates all together."""
        return self._composed(self.parts)

    @functools.cached_property
    def _proven_loss(self) -> Loss:
        """The same without any number that was simulated."""
        return self._composed([part.proven() for part in self.parts])

    def _composed(self, parts: Iterable[Part]) -> Loss:
        return composed_loss(parts, self._replaced, self._interval)

    @functools.cached_property
    def _renyi(self) -> tuple[rdp.RdpAccountant, float] | None:
        """All by Renyi divergences, where some part has nothing else; delta set apart."""
        if all(part.has_losses(self._replaced) for part in self.parts):
            return None
        return renyi(self.parts, self._replaced)


def compose(plans: Iterable[Plan | Part]) -> JointGuarantee:
    """The joint guarantee of several runs and other releases on the same data.

    Args:
      plans: one plan for each run (list a plan twice if it was run twice), and for each
        release made elsewhere an `ApproximateDP`, a `ZeroConcentratedDP` or an
        `AccountedEvent`.

    Raises:
      TypeError: if something else is given.
      ValueError: if there are none.
    """
    if isinstance(plans, (Plan, Part)):
        raise TypeError(
            f"plans must be a list with one plan for each run, found a "
            f"{type(plans).__name__}."
        )
    try:
        found = tuple(plans)
    except TypeError:
        raise TypeError(
            f"plans must be a list of tf_bandmf.Plan objects, found {plans!r}."
        ) from None
    if not found:
        raise ValueError("There is no run to compose: plans must not be empty.")
    return JointGuarantee(tuple(_part(one) for one in found))


def _order(bound: _Bound) -> tuple[int, float]:
    return KINDS.index(bound.kind), bound.value


def _part(one: Plan | Part) -> Part:
    if isinstance(one, Plan):
        return Run(one)
    if isinstance(one, Part):
        return one
    raise TypeError(
        f"plans must be tf_bandmf.Plan objects, or for releases made elsewhere "
        f"ApproximateDP, ZeroConcentratedDP or AccountedEvent, found {one!r}."
    )


@dataclasses.dataclass(frozen=True, eq=False)
class JointStatement(Statement):
    """The statement of several releases; `str()` is text, `to_markdown()` Markdown.

    Attributes:
      joint: the joint guarantee of the releases.
      guarantee: guarantee of all releases together.
      unit: whose presence is hidden.
      remarks: see `PrivacyStatement`, as for `proviso`; empty unless it is that of a run
        that others share weights or examples with.
      proviso: what must be said before the numbers.
    """

    joint: JointGuarantee
    guarantee: Guarantee
    unit: str
    remarks: tuple[str, ...]
    proviso: str

    @property
    def epsilon(self) -> float:
        """Of all releases together."""
        return self.guarantee.epsilon

    @property
    def delta(self) -> float:
        """At which epsilon is stated."""
        return self.guarantee.delta

    def facts(self) -> Facts:
        """What is promised, as numbers."""
        found, plans = self.guarantee, self.joint.plans
        # A rho alone is no Gaussian mechanism.
        noise = self.joint.gaussian_noise
        count = len(self.joint.parts)
        return Facts(
            epsilon=found.epsilon,
            delta=found.delta,
            mu=None if noise is None else 1.0 / noise,
            kind=found.kind,
            confidence=found.confidence,
            replaces=found.adjacency != ZERO_OUT,
            test_only=any(plan.test_seed is not None for plan in plans),
            unit=self.unit,
            accesses=sentences(
                self.proviso,
                f"Covered are {count} releases from the same data, together.",
                *self.remarks,
            ),
        )

    def points(self) -> list[tuple[str, str]]:
        """The points of the statement: (title, text)."""
        plans, found = self.joint.plans, self.guarantee
        others = len(self.joint.parts) - len(plans)
        formal = (
            f"(epsilon = {found.epsilon:.6g}, delta = {found.delta:.3g})-DP for all runs "
            f"together"
        )
        is_concentrated = found.zcdp_rho is not None
        concentrated = f"{found.zcdp_rho:.6g}-zCDP." if is_concentrated else ""
        counts_sampling = any(plan.participation.is_amplified for plan in plans)
        if is_concentrated and not counts_sampling:
            formal += f"; {concentrated}"
        else:
            formal += "."
        if any(plan.test_seed is not None for plan in plans):
            formal = (
                "NONE. The noise of a run comes from a known test seed: anyone can remove "
                f"it. With secret keys it would be {formal}"
            )
        accesses = f"{len(plans)} training run(s) on the same data."
        if others:
            accesses = (
                f"{len(plans)} training run(s) and {others} release(s) made elsewhere, on "
                f"the same data. What is said of the latter is their makers' to show."
            )
        runs = " ".join(
            f"({number}) {part.describe()}"
            for number, part in enumerate(self.joint.parts, start=1)
        )
        assumptions = dict.fromkeys(plan.participation.describe() for plan in plans)
        generators = dict.fromkeys(GENERATORS[plan.generator] for plan in plans)
        return [
            ("Formal statement", sentences(self.proviso, formal)),
            (
                "DP setting",
                "Central DP: the party that trains is trusted with the data, the noise "
                "keys and the correct implementation.",
            ),
            ("Data accesses covered", accesses),
            (
                "Mechanism output",
                "The sequences of all noisy gradients of all runs, hence every model"
                + ("; and the outputs of the other releases." if others else "."),
            ),
            ("Unit of privacy", sentence(self.unit)),
            ("Adjacency", found.adjacency),
            ("Type of accounting", f"{found.accountant}. {found.describe_kind()}"),
            *([("Accounting assumptions", " ".join(assumptions))] if plans else []),
            *(
                [(WITHOUT_SAMPLING, concentrated)]
                if is_concentrated and counts_sampling
                else []
            ),
            ("Runs", runs),
            *([("This run", " ".join(self.remarks))] if self.remarks else []),
            ("Not covered", " ".join([*NOT_COVERED, *generators])),
        ]
