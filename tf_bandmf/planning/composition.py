"""The joint guarantee of several runs on the same data.

    joint = tf_bandmf.compose([first_plan, second_plan])
    joint.epsilon(1e-5), joint.delta(3.0)
    print(joint.statement())

Runs without amplification compose exactly: each is a Gaussian mechanism, and so are all
together, with `1 / sigma^2 = sum_i 1 / sigma_i^2` (Dong, Roth, Su, 2019, arXiv:1905.02383,
Corollary 3.3), also where later runs are chosen by the results of earlier ones. Amplified
runs compose by their privacy loss distributions; one that is known by a single (epsilon,
delta) alone (balls in bins) by the dominating pair of such mechanisms (Kairouz, Oh,
Viswanath, 2015, arXiv:1311.0776). Every run is also a Gaussian mechanism without its
amplification: whichever is better counts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import NamedTuple

import dp_accounting
from dp_accounting import rdp
from dp_accounting.pld import common, privacy_loss_distribution

from tf_bandmf.accounting import gaussian
from tf_bandmf.accounting.checks import check_delta, check_positive
from tf_bandmf.accounting.guarantee import REPLACE_ONE, ZERO_OUT, Guarantee
from tf_bandmf.participation import BallsInBins, CyclicPoisson
from tf_bandmf.planning.plan import Plan
from tf_bandmf.planning.statement import (
    GENERATORS,
    NOT_COVERED,
    Statement,
    sentence,
)

GAUSSIAN = "composition of Gaussian mechanisms (exact)"
UNAMPLIFIED = "composition of Gaussian mechanisms, without amplification"
BASIC = "basic composition of what each run guarantees alone"
LOSSES = "composition of privacy loss distributions (dp-accounting)"
RENYI = "composition by Renyi DP (dp-accounting)"
_INTERVAL = 1e-4


class _Bound(NamedTuple):
    value: float
    accountant: str
    kind: str
    confidence: float | None


@dataclasses.dataclass(frozen=True, eq=False)
class JointGuarantee:
    """What several runs on the same data guarantee together; by `compose`.

    Formal guarantee: the outputs of all runs together are (epsilon(delta), delta)-DP,
    for runs that are made one after the other, each chosen in any way by the outputs of
    those before it.

    Attributes:
      plans: of the runs, one for each.
    """

    plans: tuple[Plan, ...]

    @property
    def adjacency(self) -> str:
        """Replace-one if that is what any of the runs is about, else zero-out.

        Under replace-one a run that is stated for zero-out counts with half of its noise,
        and without its amplification: one replacement is twice a zero-out.
        """
        replaced = any(plan.adjacency == REPLACE_ONE for plan in self.plans)
        return REPLACE_ONE if replaced else ZERO_OUT

    @property
    def zcdp_rho(self) -> float:
        """Rho of zCDP of all runs, without amplification, under `adjacency`.

        Rhos add up (Bun and Steinke, 2016, arXiv:1605.02065, Lemma 1.7).
        """
        return gaussian.zcdp_rho(self._noise_multiplier(self.plans))

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
        noise = self._noise_multiplier(self.plans)
        found = [gaussian.gaussian_delta(noise, epsilon)]
        total = math.fsum(plan.epsilon for plan in self.plans)
        if epsilon >= total and self._adds_up(1.0):
            found.append(math.fsum(plan.delta for plan in self.plans))
        if self.adjacency == REPLACE_ONE:
            found.append(float(self._renyi().get_delta(epsilon)))
        elif self._amplified:
            found.append(float(self._losses().get_delta_for_epsilon(epsilon)))
        return min(found)

    def guarantee_at(self, delta: float) -> Guarantee:
        """The joint (epsilon, delta)-DP, and what the numbers are worth.

        Kind: "exact" if all runs are Gaussian mechanisms of exactly known sensitivity;
        "estimate" if the number rests on an estimate; else "bound". Simulated bounds hold
        together with at least one minus the sum of the probabilities that each fails.

        Raises:
          ValueError: if delta is not in (0, 1), or no meaningful epsilon is found.
        """
        check_delta(delta)
        best = min(self._epsilons(delta), key=lambda bound: bound.value)
        if not math.isfinite(best.value):
            raise ValueError(
                f"No meaningful epsilon is known for these {len(self.plans)} runs at "
                f"delta = {delta}. Use a larger delta, or fewer runs."
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
        """The privacy statement of all runs together.

        Args:
          delta: by default the largest of the plans'.
          unit: as for `Plan.statement`; by default that of the plans.

        Raises:
          ValueError: as `guarantee_at`, if the unit is no text of one line, or the plans
            have different ones and none is given.
        """
        delta = max(plan.delta for plan in self.plans) if delta is None else delta
        if unit is None:
            units = sorted({plan.unit for plan in self.plans})
            if len(units) > 1:
                raise ValueError(
                    f"The plans hide different units: {', '.join(units)}. Give the unit "
                    f"that all of them hide."
                )
            unit = units[0]
        for plan in self.plans:
            plan.statement(unit)  # validates the unit
        return JointStatement(self, self.guarantee_at(delta), unit)

    @property
    def _amplified(self) -> tuple[Plan, ...]:
        kinds = (BallsInBins, CyclicPoisson)
        return tuple(
            plan for plan in self.plans if isinstance(plan.participation, kinds)
        )

    def _noise_multiplier(self, plans: Iterable[Plan]) -> float:
        """Of the Gaussian mechanism that runs are together, without amplification."""
        moved = 2.0 if self.adjacency == REPLACE_ONE else 1.0
        precision = math.fsum((moved / plan.noise_multiplier) ** 2 for plan in plans)
        return 1.0 / math.sqrt(precision)

    def _epsilons(self, delta: float) -> list[_Bound]:
        exact = all(
            plan.accountant == gaussian.NAME and plan.kind == "exact"
            for plan in self.plans
        )
        try:
            noise = self._noise_multiplier(self.plans)
            value = gaussian.gaussian_epsilon(noise, delta)
        except ValueError:  # beyond any meaning
            value = math.inf
        name, kind = (GAUSSIAN, "exact") if exact else (UNAMPLIFIED, "bound")
        found = [_Bound(value, name, kind, None)]
        if self.adjacency == REPLACE_ONE:
            value = float(self._renyi().get_epsilon(delta))
            found.append(_Bound(value, RENYI, "bound", None))
        elif self._amplified:
            value = float(self._losses().get_epsilon_for_delta(delta))
            found.append(_Bound(value, LOSSES, *_certainty(self._amplified)))
        if self._adds_up(delta):
            value = math.fsum(plan.epsilon for plan in self.plans)
            # Where it is no better, the others say more of what the number is worth.
            if value < (1.0 - 1e-6) * min(bound.value for bound in found):
                found.append(_Bound(value, BASIC, *_certainty(self.plans)))
        return [bound for bound in found if not math.isnan(bound.value)]

    def _adds_up(self, delta: float) -> bool:
        """Whether basic composition of what the plans state is a guarantee at delta."""
        same = all(plan.adjacency == self.adjacency for plan in self.plans)
        return same and math.fsum(plan.delta for plan in self.plans) <= delta

    def _losses(self) -> privacy_loss_distribution.PrivacyLossDistribution:
        amplified = self._amplified
        losses = [_loss(plan) for plan in amplified]
        others = [plan for plan in self.plans if plan not in amplified]
        if others:
            losses.append(
                privacy_loss_distribution.from_gaussian_mechanism(
                    self._noise_multiplier(others),
                    value_discretization_interval=_INTERVAL,
                )
            )
        total = losses[0]
        for loss in losses[1:]:
            total = total.compose(loss)
        return total

    def _renyi(self) -> rdp.RdpAccountant:
        accountant = rdp.RdpAccountant(
            neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
        )
        others = [plan for plan in self.plans if plan.adjacency != REPLACE_ONE]
        for plan in self.plans:
            if plan.adjacency == REPLACE_ONE:
                accountant.compose(plan.dp_event())
        if others:
            noise = self._noise_multiplier(others)
            accountant.compose(dp_accounting.GaussianDpEvent(noise))
        return accountant


def compose(plans: Iterable[Plan]) -> JointGuarantee:
    """The joint guarantee of several runs on the same data, one plan for each.

    Args:
      plans: of the runs; a plan that was run twice stands there twice.

    Raises:
      TypeError: if something else than plans is given.
      ValueError: if there are none.
    """
    if isinstance(plans, Plan):
        raise TypeError(
            "plans must be a list with one plan for each run, found a Plan."
        )
    try:
        found = tuple(plans)
    except TypeError:
        raise TypeError(
            f"plans must be a list of tf_bandmf.Plan objects, found {plans!r}."
        ) from None
    for plan in found:
        if not isinstance(plan, Plan):
            raise TypeError(f"plans must be tf_bandmf.Plan objects, found {plan!r}.")
    if not found:
        raise ValueError("There is no run to compose: plans must not be empty.")
    return JointGuarantee(found)


def _certainty(plans: Iterable[Plan]) -> tuple[str, float | None]:
    """Kind and confidence of what rests on the numbers of all these runs."""
    plans = tuple(plans)
    risks = [1.0 - plan.confidence for plan in plans if plan.confidence is not None]
    if any(plan.kind == "estimate" for plan in plans) or math.fsum(risks) > 0.5:
        return "estimate", None
    return "bound", 1.0 - math.fsum(risks) if risks else None


def _loss(plan: Plan) -> privacy_loss_distribution.PrivacyLossDistribution:
    if isinstance(plan.participation, CyclicPoisson):
        return plan.privacy_loss_distribution(_INTERVAL)
    return privacy_loss_distribution.from_privacy_parameters(
        common.DifferentialPrivacyParameters(plan.epsilon, plan.delta),
        value_discretization_interval=_INTERVAL,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class JointStatement(Statement):
    """The statement of several runs; `str()` is text, `to_markdown()` Markdown.

    Attributes:
      joint: the runs.
      guarantee: of all of them.
      unit: whose presence is hidden.
    """

    joint: JointGuarantee
    guarantee: Guarantee
    unit: str

    def points(self) -> list[tuple[str, str]]:
        """The points of the statement: (title, text)."""
        plans, found = self.joint.plans, self.guarantee
        formal = (
            f"(epsilon = {found.epsilon:.6g}, delta = {found.delta:.3g})-DP for all runs "
            f"together; without amplification {found.zcdp_rho:.6g}-zCDP."
        )
        if any(plan.test_seed is not None for plan in plans):
            formal = (
                "NONE. The noise of a run comes from a known test seed: anyone can remove "
                f"it. With secret keys it would be {formal}"
            )
        runs = " ".join(
            f"({number}) {plan.statement().mechanism}, {plan.num_steps} steps, noise "
            f"multiplier {plan.noise_multiplier:.6g} per unit of sensitivity, alone "
            f"(epsilon = {plan.epsilon:.6g}, delta = {plan.delta:.3g}); plan fingerprint "
            f"{plan.fingerprint}."
            for number, plan in enumerate(plans, start=1)
        )
        assumptions = dict.fromkeys(plan.participation.describe() for plan in plans)
        generators = dict.fromkeys(GENERATORS[plan.generator] for plan in plans)
        return [
            ("Formal statement", formal),
            (
                "DP setting",
                "Central DP: the party that trains is trusted with the data, the noise "
                "keys and the correct implementation.",
            ),
            (
                "Data accesses covered",
                f"{len(plans)} training run(s) on the same data.",
            ),
            (
                "Mechanism output",
                "The sequences of all noisy gradients of all runs, hence every model.",
            ),
            ("Unit of privacy", sentence(self.unit)),
            ("Adjacency", found.adjacency),
            ("Type of accounting", f"{found.accountant}. {found.describe_kind()}"),
            ("Accounting assumptions", " ".join(assumptions)),
            ("Runs", runs),
            ("Not covered", " ".join([*NOT_COVERED, *generators])),
        ]
