"""All that is known of the privacy of a run or release, as plain numbers to be kept.

It is for one adjacency. One replacement is twice a zero-out: a run that is stated for
zero-out counts under replace-one with half of its noise, and without its amplification.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import dp_accounting

from tf_bandmf.accounting import event_losses, gaussian, profiles
from tf_bandmf.planning.composition import compose
from tf_bandmf.planning.elsewhere import ApproximateDP
from tf_bandmf.planning.parts import Loss, Part, Run, doubled_pair, gaussian_loss

# At which releases that have no delta of their own state an epsilon.
_DELTA = 1e-9


@dataclasses.dataclass(frozen=True)
class Release(Part):
    """What is known of the privacy of one run or release, or of several equal ones.

    It holds for one adjacency, which to `compose` is that of all parts.

    Attributes:
      epsilon, delta: as stated; both 0 for a run that took no step.
      mu: of the Gaussian mechanism that it is at least as private as, or None.
      is_gaussian: whether `mu` is all that there is to know.
      rho: of zCDP, where there is no `mu`; or None.
      poisson: (q, noise, queries) of Poisson-sampled Gaussian queries, or None.
      fixed_size: (part, batch, noise, queries) of samples without replacement, or None.
      risk: probability that a simulated bound does not hold.
      count: how many there are.
    """

    epsilon: float
    delta: float
    mu: float | None = None
    is_gaussian: bool = False
    rho: float | None = None
    poisson: tuple[float, float, int] | None = None
    fixed_size: tuple[int, int, float, int] | None = None
    risk: float = 0.0
    count: int = 1

    @classmethod
    def of_mu(cls, mu: float, delta: float) -> Release:
        """A Gaussian mechanism with this sensitivity per unit of noise.

        Raises:
          ValueError: if it has no meaningful epsilon at delta.
        """
        epsilon = gaussian.gaussian_epsilon(1.0 / mu, delta)
        return cls(epsilon, delta, mu, is_gaussian=True)

    def to_json(self) -> dict[str, Any]:
        """Plain values for an entry; what is not known is left out."""
        return {name: value for name, value in vars(self).items() if value}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Release:
        """Reads `to_json`."""
        known: dict[str, Any] = {"epsilon": 0.0, "delta": 0.0, **value}
        known |= {k: tuple(v) for k, v in value.items() if isinstance(v, list)}
        return cls(**known)

    # As a part of a composition.

    @property
    def replaces(self) -> bool:  # type: ignore[override]
        # Renyi divergences of samples without replacement are of replacements.
        return self.fixed_size is not None

    @property
    def holds_for_zero_out(self) -> bool:
        return True

    @property
    def kind(self) -> str:  # type: ignore[override]
        return "exact" if self.is_gaussian else "bound"

    def describe(self) -> str:
        return f"{self.count} release(s)."

    def stated(self, replaced: bool) -> tuple[float, float]:
        return self.epsilon * self.count, self.delta * self.count

    def gaussian_noise(self, replaced: bool) -> float | None:
        return 1.0 / (self.mu * math.sqrt(self.count)) if self.mu else None

    def zcdp(self, replaced: bool) -> float | None:
        # Bun and Steinke, 2016, arXiv:1605.02065, Propositions 1.4 and 1.6.
        pure = 0.5 * self.epsilon**2 if self.delta == 0.0 else None
        rhos = (self.rho, self.mu and 0.5 * self.mu**2, pure)
        known = [rho * self.count for rho in rhos if rho is not None]
        return min(known, default=None)

    def has_losses(self, replaced: bool) -> bool:
        return self.fixed_size is None

    def losses(self, replaced: bool, interval: float) -> list[Loss]:
        return [_loss(self, interval)]

    def divergences(self, replaced: bool) -> tuple[dp_accounting.DpEvent, float] | None:
        if self.fixed_size is None:
            return None
        part, batch, noise, queries = self.fixed_size
        query = dp_accounting.SampledWithoutReplacementDpEvent(
            part, batch, dp_accounting.GaussianDpEvent(noise)
        )
        return dp_accounting.SelfComposedDpEvent(query, queries * self.count), 0.0


# Balances that differ in one run have the losses of the others in common.
@functools.lru_cache(maxsize=64)
def _loss(release: Release, interval: float) -> Loss:
    if release.is_gaussian:
        return gaussian_loss(release.gaussian_noise(False), interval)  # type: ignore[arg-type]
    if release.poisson is not None:
        probability, noise, queries = release.poisson
        query = dp_accounting.PoissonSampledDpEvent(
            probability, dp_accounting.GaussianDpEvent(noise)
        )
        count = queries * release.count
        return event_losses.additive_loss(query, count, interval)  # type: ignore[return-value]
    pair = ApproximateDP(release.epsilon, release.delta)
    (single,) = pair.losses(False, interval)
    if release.mu or release.rho:
        known = [profiles.pair_profile(release.epsilon, release.delta)]
        if release.mu:
            known.append(profiles.gaussian_profile(1.0 / release.mu))
        if release.rho:
            known.append(profiles.zcdp_profile(release.rho))
        both = profiles.least(*known)
        single = profiles.dominating_loss(both, interval, [release.epsilon])
    if release.count == 1:
        return single
    # As `event_losses.additive_loss`.
    rounding = event_losses.rounding_of_transforms(release.count)
    (unbounded,) = ApproximateDP(0.0, rounding).losses(False, interval)
    return single.self_compose(release.count).compose(unbounded)


def release_of(part: Part, replaced: bool) -> Release:
    """What is proven of a run, or of a release made elsewhere.

    Args:
      part: as `compose` takes it.
      replaced: whether it is to hold where one unit is replaced; else for zero-out.

    Raises:
      ValueError: if it is an estimate, says nothing for these neighbors, or has no
        meaningful epsilon.
    """
    delta, event = _DELTA, getattr(part, "event", None)
    if isinstance(part, Run):
        delta = part.plan.delta
        if not part.plan.participation.is_simulated:
            event = part.plan.dp_event()
        if part.kind == "estimate":  # counts without its amplification
            part = part.proven()
    if part.kind == "estimate":
        raise ValueError(f"An estimate is no bound, and cannot be spent: {part}.")
    if not (replaced or part.holds_for_zero_out):
        raise ValueError(
            f"{part.describe()} It is stated for neighbors in which one unit is replaced, "
            f"and the data set's adjacency is zero-out: state it for that."
        )
    noise, is_doubled = part.gaussian_noise(replaced), part.is_doubled(replaced)
    if noise is not None and (part.is_gaussian or is_doubled):
        return Release.of_mu(1.0 / noise, delta)
    known = _sampling(event) if event is not None and not is_doubled else {}
    if noise is None and "poisson" in known:
        noise = known["poisson"][1] / math.sqrt(known["poisson"][2])
    pair = part.stated(replaced)
    if pair is None:
        found = compose([part]).guarantee_at(delta)
        pair = found.epsilon, found.delta
        pair = doubled_pair(*pair) if is_doubled else pair
    risk = 0.0 if part.confidence is None else 1.0 - part.confidence
    rho = part.zcdp(replaced) if noise is None else None
    return Release(*pair, noise and 1.0 / noise, rho=rho, risk=risk, **known)


def _sampling(event: dp_accounting.DpEvent) -> dict[str, Any]:
    """`poisson` or `fixed_size`, if all of an event is Gaussian noise sampled so."""
    ((query, count), *others) = event_losses.pieces(event)
    single = getattr(query, "event", None)
    if others or not isinstance(single, dp_accounting.GaussianDpEvent):
        return {}
    noise = float(single.noise_multiplier)
    if isinstance(query, dp_accounting.PoissonSampledDpEvent):
        return {"poisson": (float(query.sampling_probability), noise, count)}
    if isinstance(query, dp_accounting.SampledWithoutReplacementDpEvent):
        sizes = int(query.source_dataset_size), int(query.sample_size)
        return {"fixed_size": (*sizes, noise, count)}
    return {}
