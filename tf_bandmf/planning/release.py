"""What is known of the privacy of one run, or of a release that was made elsewhere.

    joint = tf_bandmf.compose([
        plan,
        tf_bandmf.Release("query log, 2025", epsilon=0.5, delta=1e-7),
        tf_bandmf.Release("census of devices", rho=0.02),
        tf_bandmf.Release("histogram", event=dp_accounting.LaplaceDpEvent(2.0)),
    ])

Each is about the same data and the same unit as the runs. Everything that the numbers
imply is used: a pair (epsilon, delta) counts as the worst mechanism with this pair
(Kairouz, Oh, Viswanath, 2015, arXiv:1311.0776, Theorem 3.3), rhos add up (Bun and Steinke,
2016, arXiv:1605.02065, Lemma 1.7) and count by their privacy profile, and an event counts
as its privacy loss, or by the deltas that dp-accounting has for it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import dp_accounting
import numpy as np
from dp_accounting import rdp
from dp_accounting.pld import common, pld_privacy_accountant, privacy_loss_distribution

from tf_bandmf.accounting import event_losses, gaussian, profiles, tilted
from tf_bandmf.accounting.checks import check_epsilon, check_positive, is_number
from tf_bandmf.accounting.guarantee import KINDS, REPLACE_ONE, ZERO_OUT
from tf_bandmf.planning.statement import mechanism_of

if TYPE_CHECKING:
    from tf_bandmf.planning.plan import Plan

Loss: TypeAlias = privacy_loss_distribution.PrivacyLossDistribution

REPLACE_ONLY = "Replace-one: one unit is replaced by any other."
# What numbers may be stated for. Those of a run for which units are replaced also hold for
# zero-out: a contribution of zero is one of the replacements.
ADJACENCIES = {"zero-out": ZERO_OUT, "replace-one": REPLACE_ONLY, "either": REPLACE_ONE}
# An epsilon at which a mechanism with any privacy has delta < 1; rounding errors of delta.
_LARGE, _ROUNDING = 400.0, 1e-12


@dataclasses.dataclass(frozen=True)
class Release:
    """All that is known of the privacy of a run, or of a release made elsewhere.

    Give a pair, a rho, or an event of dp-accounting; if several are given, all must hold.

    Attributes:
      about: what it is, in one line.
      epsilon: of (epsilon, delta)-DP, >= 0.
      delta: in [0, 1); 0 for pure DP, such as the Laplace mechanism.
      rho: of zero-concentrated DP. For a Gaussian mechanism give the event: it says more.
      event: of dp-accounting; noise multipliers are relative to the contribution of one
        unit, or to the change by a replacement under "replace-one". Gaussian noise
        composes exactly.
      noise_multiplier: of a Gaussian mechanism that is at most as private, per unit of
        what one unit contributes: a run without its amplification.
      adjacency: "zero-out" (one unit is added, removed or zeroed out), "replace-one"
        (one is replaced by another, as for sampling without replacement), or "either"
        for runs whose numbers hold for both. A replacement is two zero-outs.
      kind: "exact", "bound" or "estimate"; by default what the numbers are.
      risk: probability that a simulated bound does not hold.
      plan: of a run.

    Raises:
      TypeError: if the event is none of dp-accounting.
      ValueError: if a number is out of range, nothing is known, or the event gives no
        privacy, or dp-accounting cannot account for it under these neighbors.
    """

    about: str = "a release made elsewhere"
    _: dataclasses.KW_ONLY
    epsilon: float | None = None
    delta: float = 0.0
    rho: float | None = None
    event: dp_accounting.DpEvent | None = dataclasses.field(default=None, hash=False)
    noise_multiplier: float | None = None
    adjacency: str = "zero-out"
    kind: str = ""
    risk: float = 0.0
    plan: Plan | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.about, str) or len(self.about.strip().splitlines()) != 1:
            raise ValueError(f"about must be text of one line, found {self.about!r}.")
        if self.adjacency not in ADJACENCIES:
            raise ValueError(
                f"adjacency must be one of {', '.join(ADJACENCIES)}, found "
                f"{self.adjacency!r}."
            )
        given = self.epsilon, self.rho, self.event, self.noise_multiplier
        if all(one is None for one in given):
            raise ValueError(
                "Give the epsilon and delta of a release, a rho or an event."
            )
        if self.epsilon is not None:
            check_epsilon(self.epsilon)
        if not (is_number(self.delta) and 0.0 <= self.delta < 1.0):
            raise ValueError(f"delta must be in [0, 1), found {self.delta!r}.")
        for name in ("rho", "noise_multiplier"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        if self.event is not None and self.plan is None:
            _check_event(self)
        least = "exact" if self.is_gaussian else "bound"
        if self.kind not in ("", *KINDS[KINDS.index(least) :]):
            raise ValueError(
                f"kind must be one of {', '.join(KINDS)}, and exact only for Gaussian "
                f"noise, found {self.kind!r}."
            )
        object.__setattr__(self, "kind", self.kind or least)

    @classmethod
    def of_plan(cls, plan: Plan) -> Release:
        """A run of a plan."""
        use, noise = plan.participation, plan.unamplified_noise
        event = None if use.is_simulated else plan.dp_event()
        if not use.is_amplified:
            event = dp_accounting.GaussianDpEvent(noise)
        return cls(
            epsilon=plan.epsilon,
            delta=plan.delta,
            event=event,
            noise_multiplier=noise,
            adjacency="either" if plan.adjacency == REPLACE_ONE else "zero-out",
            kind="" if plan.kind == "exact" else plan.kind,
            risk=0.0 if plan.confidence is None else 1.0 - plan.confidence,
            plan=plan,
        )

    @classmethod
    def gaussian(
        cls, noise: float, delta: float, adjacency: str = "zero-out"
    ) -> Release:
        """A Gaussian mechanism, with its epsilon at delta.

        Raises:
          ValueError: if it has no meaningful epsilon at delta.
        """
        return cls(
            epsilon=gaussian.gaussian_epsilon(noise, delta),
            delta=delta,
            event=dp_accounting.GaussianDpEvent(noise),
            adjacency=adjacency,
        )

    def describe(self) -> str:
        """For the statement: what it is, and what it guarantees alone."""
        if self.plan is not None:
            plan = self.plan
            return (
                f"{mechanism_of(plan.strategy)}, {plan.num_steps} steps, noise multiplier "
                f"{plan.noise_multiplier:.6g} per unit of sensitivity, alone (epsilon = "
                f"{plan.epsilon:.6g}, delta = {plan.delta:.3g}); plan fingerprint "
                f"{plan.fingerprint}. {plan.measurements.describe()}"
            ).strip()
        said = []
        if self.epsilon is not None:
            said.append(f"(epsilon = {self.epsilon:.6g}, delta = {self.delta:.3g})-DP")
        if self.rho is not None:
            said.append(f"{self.rho:.6g}-zCDP")
        if self.event is not None:
            said.append(str(self.event))
        return f"{self.about}: {', '.join(said)}."

    # What it is under one adjacency: `replaced` for replacements, else for zero-out.

    @functools.cached_property
    def pieces(self) -> tuple[tuple[dp_accounting.DpEvent, int], ...]:
        """What its event consists of, and how often each happens."""
        return () if self.event is None else tuple(event_losses.pieces(self.event))

    @functools.cached_property
    def is_gaussian(self) -> bool:
        """Whether its Gaussian noise is all that there is to know of it."""
        return bool(self.pieces) and all(
            isinstance(piece, dp_accounting.GaussianDpEvent) for piece, _ in self.pieces
        )

    @property
    def is_simulated(self) -> bool:
        """Whether its pair is simulated, and something else is known of it."""
        is_certain = self.kind != "estimate" and not self.risk
        return not (is_certain or self.noise_multiplier is None or self.is_gaussian)

    def proven(self) -> Release:
        """The release without numbers that were simulated."""
        if not self.is_simulated:
            return self
        noise = self.gaussian_noise(False)
        event = dp_accounting.GaussianDpEvent(noise)
        changes: dict[str, Any] = {"epsilon": None, "event": event, "kind": "bound"}
        return dataclasses.replace(self, **changes, risk=0.0)

    def is_doubled(self, replaced: bool) -> bool:
        return replaced and self.adjacency == "zero-out"

    def stated(self, replaced: bool) -> tuple[float, float] | None:
        """The (epsilon, delta) that it states, or None."""
        if self.epsilon is None or not self.is_doubled(replaced):
            return None if self.epsilon is None else (self.epsilon, self.delta)
        # Neighbors of neighbors: group privacy.
        delta = self.delta * (1.0 + math.exp(min(self.epsilon, 700.0)))
        return 2.0 * self.epsilon, min(delta, 1.0)

    def gaussian_noise(self, replaced: bool) -> float | None:
        """Per unit of sensitivity, if it is a Gaussian mechanism (also)."""
        noise = self.noise_multiplier
        if self.is_gaussian:
            squares = (n / piece.noise_multiplier**2 for piece, n in self.pieces)
            noise = 1.0 / math.sqrt(math.fsum(squares))
        halved = replaced and self.adjacency != "replace-one"
        return noise and noise * (0.5 if halved else 1.0)

    def zcdp(self, replaced: bool) -> float | None:
        """The least rho of zCDP that is known, without amplification; or None."""
        times = 4.0 if self.is_doubled(replaced) else 1.0
        noise = self.gaussian_noise(replaced)
        rhos = [] if noise is None else [gaussian.zcdp_rho(noise)]
        rhos += [] if self.rho is None else [times * self.rho]
        if self.epsilon is not None and self.delta == 0.0:
            # Bun and Steinke, 2016, arXiv:1605.02065, Proposition 1.4.
            rhos.append(times * 0.5 * self.epsilon**2)
        return min(rhos, default=None)

    @property
    def is_zcdp(self) -> bool:
        """Whether its rho is all that there is to know of it."""
        return (self.epsilon, self.event, self.noise_multiplier) == (None, None, None)

    def queries(self, replaced: bool) -> tuple[tilted.Query, ...] | None:
        """Gaussian queries on samples, or on all, that it consists of; None for others."""
        found = [event_losses.query_of(piece, count) for piece, count in self.pieces]
        if not found or None in found:
            return None
        if self.is_gaussian:
            return (tilted.Query(1.0, self.gaussian_noise(replaced)),)  # type: ignore[arg-type]
        # Under replacements dp-accounting knows no Poisson sampling, else no other.
        replaces = self.adjacency != "zero-out"
        fit = all(q.is_replaced == replaces or q.probability == 1.0 for q in found)  # type: ignore[union-attr]
        return tuple(found) if fit and not self.is_doubled(replaced) else None  # type: ignore[arg-type]

    def losses(self, replaced: bool, interval: float, count: int) -> tuple[Loss, ...]:
        """Privacy losses that dominate so many of it together."""
        if self.event is not None and not self.is_doubled(replaced):
            return self._event_losses(interval, count)
        loss = self._loss(replaced, interval)
        if count == 1:
            return (loss,)
        # As `event_losses.additive_loss`.
        rounding = event_losses.rounding_of_transforms(count)
        return loss.self_compose(count), _pair_loss((0.0, rounding), interval)

    def _loss(self, replaced: bool, interval: float) -> Loss:
        """That of the worst mechanism with all that is known."""
        noise, pair = self.gaussian_noise(replaced), self.stated(replaced)
        if pair is not None and (self.event, noise, self.rho) == (None, None, None):
            return _pair_loss(pair, interval)
        bounds = []
        if noise is not None:
            bounds.append(profiles.gaussian_profile(noise))
        if pair is not None:
            bounds.append(profiles.pair_profile(*pair))
        if self.rho is not None:
            times = 4.0 if self.is_doubled(replaced) else 1.0
            bounds.append(profiles.zcdp_profile(times * self.rho))
        if self.event is not None:
            parts = self._event_losses(interval, 1)
            whole = functools.reduce(lambda a, b: a.compose(b), parts)
            bounds.append(profiles.twice(profiles.of_loss(whole)))
        kinks = () if pair is None else (pair[0],)
        return profiles.dominating_loss(profiles.least(*bounds), interval, kinks)

    def _event_losses(self, interval: float, times: int) -> tuple[Loss, ...]:
        losses, others = [], []
        for piece, count in self.pieces:
            loss = event_losses.additive_loss(piece, times * count, interval)
            if loss is None:
                others.append(dp_accounting.SelfComposedDpEvent(piece, times * count))
            else:
                losses.append(loss)
        if others:
            rest = dp_accounting.ComposedDpEvent(others)
            profile = _profile_of(rest, self.adjacency != "zero-out")
            losses.append(profiles.dominating_loss(profile, interval))
        return tuple(losses)

    # As an entry of a ledger.

    def to_json(self) -> dict[str, Any]:
        """Plain values for an entry; what is not known is left out."""
        names = ("epsilon", "delta", "rho", "noise_multiplier", "risk")
        record = {name: getattr(self, name) for name in names if getattr(self, name)}
        if self.event is not None:
            record["event"] = numbers_of(self.event)
        return {**record, "adjacency": self.adjacency}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Release:
        """Reads `to_json`."""
        fields: dict[str, Any] = {**value, "event": _event_of(value.get("event"))}
        if not fields.keys() & {"epsilon", "rho", "noise_multiplier"}:
            fields["epsilon"] = 0.0
        return cls(**fields)


def _pair_loss(pair: tuple[float, float], interval: float) -> Loss:
    if pair == (0.0, 0.0):
        return privacy_loss_distribution.identity(interval)
    return privacy_loss_distribution.from_privacy_parameters(
        common.DifferentialPrivacyParameters(*pair),
        value_discretization_interval=interval,
    )


def _accountant_of(
    event: dp_accounting.DpEvent, replaced: bool
) -> dp_accounting.PrivacyAccountant | None:
    """One of dp-accounting that can account for an event under these neighbors.

    Zero-out is "replace special", and add-or-remove for what knows both.
    """
    relations = dp_accounting.NeighboringRelation
    if replaced:
        several = [rdp.RdpAccountant(neighboring_relation=relations.REPLACE_ONE)]
    else:
        special = rdp.RdpAccountant(neighboring_relation=relations.REPLACE_SPECIAL)
        several = [pld_privacy_accountant.PLDAccountant(), rdp.RdpAccountant(), special]
    return next((one for one in several if one.supports(event)), None)


def _profile_of(event: dp_accounting.DpEvent, replaced: bool) -> profiles.Profile:
    """Delta at each epsilon, by dp-accounting."""
    accountant = _accountant_of(event, replaced)
    assert accountant is not None  # _check_event
    accountant.compose(event)

    def profile(epsilons: np.ndarray) -> np.ndarray:
        deltas = np.array([float(accountant.get_delta(float(e))) for e in epsilons])
        if not np.all((deltas >= -_ROUNDING) & (deltas <= 1.0 + _ROUNDING)):
            raise ArithmeticError(
                f"The accountant returned delta = {deltas} for {event} at epsilon = "
                f"{epsilons}."
            )
        return np.clip(deltas, 0.0, 1.0)

    return profile


def _check_event(release: Release) -> None:
    """Raises ValueError unless every piece of an event has some privacy."""
    event, replaced = release.event, release.adjacency != "zero-out"
    if not isinstance(event, dp_accounting.DpEvent):
        raise TypeError(f"event must be a dp_accounting.DpEvent, found {event!r}.")
    if not release.pieces:
        raise ValueError(f"The event releases nothing: {event}. Leave it out.")
    if release.queries(replaced) is not None:
        return
    for piece, _ in release.pieces:
        if _accountant_of(piece, replaced) is None:
            neighbors = "replaced" if replaced else "added or removed"
            raise ValueError(
                f"event must be one that dp-accounting can account for where a unit is "
                f"{neighbors}, found {event}. Give its epsilon and delta, or its rho."
            )
        try:
            has_privacy = _profile_of(piece, replaced)(np.array([_LARGE])) < 1.0
        except (ValueError, ArithmeticError) as error:  # of dp-accounting
            raise ValueError(
                f"event must have numbers that dp-accounting accepts, found {event}: "
                f"{error}"
            ) from error
        if not has_privacy:
            raise ValueError(f"event must have some privacy, found {event}.")


def numbers_of(event: dp_accounting.DpEvent) -> list[float] | None:
    """Noise, q, or source and sample, and count of sampled Gaussian noise; else None."""
    ((query, count), *others) = event_losses.pieces(event)
    single = getattr(query, "event", query)
    if others or not isinstance(single, dp_accounting.GaussianDpEvent):
        return None
    numbers = [count, float(single.noise_multiplier)]
    if isinstance(query, dp_accounting.PoissonSampledDpEvent):
        numbers.append(float(query.sampling_probability))
    elif isinstance(query, dp_accounting.SampledWithoutReplacementDpEvent):
        numbers += [int(query.source_dataset_size), int(query.sample_size)]
    return numbers


def _event_of(numbers: list[Any] | None) -> dp_accounting.DpEvent | None:
    """Reads `numbers_of`."""
    if numbers is None:
        return None
    count, noise, *sampling = numbers
    event = dp_accounting.GaussianDpEvent(noise)
    if len(sampling) == 1:
        event = dp_accounting.PoissonSampledDpEvent(*sampling, event)
    elif sampling:
        event = dp_accounting.SampledWithoutReplacementDpEvent(*sampling, event)
    return event if count == 1 else dp_accounting.SelfComposedDpEvent(event, count)
