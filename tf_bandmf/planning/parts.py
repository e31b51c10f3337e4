"""What a composition asks of each of its parts: a run, or a release made elsewhere."""

from __future__ import annotations

import abc
import math
from typing import TypeAlias

import dp_accounting
from dp_accounting import rdp
from dp_accounting.pld import privacy_loss_distribution

from tf_bandmf.accounting import gaussian, profiles
from tf_bandmf.accounting.guarantee import REPLACE_ONE
from tf_bandmf.participation import CyclicPoisson
from tf_bandmf.planning.plan import Plan

Loss: TypeAlias = privacy_loss_distribution.PrivacyLossDistribution


class Part(abc.ABC):
    """One of several releases about the same data.

    Methods with an argument `replaced` speak of what happens if one unit is replaced by
    another (True), else of zero-out.

    Attributes:
      replaces: whether the part is stated for replacements.
      is_gaussian: whether its `gaussian_noise` is all that there is to know of it.
      is_zcdp: whether its `zcdp` is.
      kind: of its numbers, "exact", "bound" or "estimate".
      confidence: of a simulated bound, else None.
    """

    replaces: bool
    is_gaussian: bool = False
    is_zcdp: bool = False
    kind: str = "bound"
    confidence: float | None = None

    @abc.abstractmethod
    def describe(self) -> str:
        """For the statement: what it is, and what it guarantees alone."""

    def stated(self, replaced: bool) -> tuple[float, float] | None:
        """The (epsilon, delta) that it states, or None."""
        return None

    def gaussian_noise(self, replaced: bool) -> float | None:
        """Per unit of sensitivity, if the part is a Gaussian mechanism (also)."""
        return None

    def zcdp(self, replaced: bool) -> float | None:
        """The rho of zCDP, without amplification; None if there is none."""
        noise = self.gaussian_noise(replaced)
        return None if noise is None else gaussian.zcdp_rho(noise)

    def has_losses(self, replaced: bool) -> bool:
        """Whether `losses` has any; else `divergences` are all that is known."""
        return True

    @abc.abstractmethod
    def losses(self, replaced: bool, interval: float) -> list[Loss]:
        """Privacy losses that dominate the part together."""

    def divergences(self, replaced: bool) -> tuple[dp_accounting.DpEvent, float] | None:
        """An event with its Renyi divergences, and a delta that is set apart; or None."""
        return None

    def proven(self) -> Part:
        """The part without numbers that were simulated."""
        return self

    @property
    def holds_for_zero_out(self) -> bool:
        """Whether what is stated also holds if a unit contributes nothing."""
        return not self.replaces

    def is_doubled(self, replaced: bool) -> bool:
        """Whether a replacement is twice what the part is stated for."""
        return replaced and not self.replaces


def doubled_pair(epsilon: float, delta: float) -> tuple[float, float]:
    """An (epsilon, delta) pair for neighbors of neighbors (group privacy)."""
    return 2.0 * epsilon, min(delta * (1.0 + math.exp(min(epsilon, 700.0))), 1.0)


class Run(Part):
    """A run of a plan, as a part."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.replaces = plan.adjacency == REPLACE_ONE
        self.kind, self.confidence = plan.kind, plan.confidence
        self.is_gaussian = not plan.participation.is_amplified

    @property
    def holds_for_zero_out(self) -> bool:
        # A contribution of zero is one of the replacements that are accounted for.
        return True

    def stated(self, replaced: bool) -> tuple[float, float]:
        found = self.plan.epsilon, self.plan.delta
        return doubled_pair(*found) if self.is_doubled(replaced) else found

    def gaussian_noise(self, replaced: bool) -> float:
        # The plan's is that of a zero-out, also if it is stated for replacements.
        return self.plan.unamplified_noise / (2.0 if replaced else 1.0)

    def proven(self) -> Part:
        return _Unamplified(self.plan) if self.plan.participation.is_simulated else self

    def has_losses(self, replaced: bool) -> bool:
        is_sampled = self.plan.participation.is_amplified
        return not (is_sampled and self.replaces)

    def losses(self, replaced: bool, interval: float) -> list[Loss]:
        plan = self.plan
        if self.is_gaussian:
            return [gaussian_loss(self.gaussian_noise(replaced), interval)]
        # One (epsilon, delta) is known of it, and what it is without amplification.
        pair = self.stated(replaced)
        known = [
            profiles.gaussian_profile(self.gaussian_noise(replaced)),
            profiles.pair_profile(*pair),
        ]
        if isinstance(plan.participation, CyclicPoisson):
            loss = plan.privacy_loss_distribution(interval)
            if not self.is_doubled(replaced):
                return [loss]
            known.append(profiles.twice(profiles.of_loss(loss)))
        both = profiles.least(*known)
        return [profiles.dominating_loss(both, interval, [pair[0]])]

    def divergences(self, replaced: bool) -> tuple[dp_accounting.DpEvent, float]:
        if self.replaces == replaced and not self.plan.participation.is_simulated:
            return self.plan.dp_event(), 0.0
        return dp_accounting.GaussianDpEvent(self.gaussian_noise(replaced)), 0.0

    def describe(self) -> str:
        plan = self.plan
        return (
            f"{plan.statement().mechanism}, {plan.num_steps} steps, noise multiplier "
            f"{plan.noise_multiplier:.6g} per unit of sensitivity, alone (epsilon = "
            f"{plan.epsilon:.6g}, delta = {plan.delta:.3g}); plan fingerprint "
            f"{plan.fingerprint}. {plan.measurements.describe()}"
        ).strip()


class _Unamplified(Run):
    """A run as the Gaussian mechanism that it is, whatever the sampler did."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.is_gaussian, self.kind, self.confidence = True, "bound", None


def renyi_accountants(replaced: bool) -> list[rdp.RdpAccountant]:
    """Fresh ones. Zero-out is "replace special", and add-or-remove for what knows both."""
    known = dp_accounting.NeighboringRelation
    zero_out = [known.ADD_OR_REMOVE_ONE, known.REPLACE_SPECIAL]
    return [
        rdp.RdpAccountant(neighboring_relation=relation)
        for relation in ([known.REPLACE_ONE] if replaced else zero_out)
    ]


def gaussian_loss(noise: float, interval: float) -> Loss:
    """The Gaussian mechanism's loss with this noise per unit of sensitivity."""
    return privacy_loss_distribution.from_gaussian_mechanism(
        noise, value_discretization_interval=interval
    )
