"""Releases that were made and accounted for elsewhere, to compose with runs.

    joint = tf_bandmf.compose([
        plan,
        tf_bandmf.ApproximateDP(0.5, 1e-7, name="query log, 2025"),
        tf_bandmf.ZeroConcentratedDP(0.02, name="census of devices"),
        tf_bandmf.AccountedEvent(dp_accounting.LaplaceDpEvent(2.0), name="histogram"),
    ])

Each is about the same data and the same unit as the runs. For each, everything that its
numbers imply is used: a pair counts as the worst mechanism with this pair, a rho as its
whole privacy profile, and an event as the privacy loss or Renyi divergences that
dp-accounting has for it.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import dp_accounting
import numpy as np
from dp_accounting import rdp
from dp_accounting.pld import common, pld_privacy_accountant, privacy_loss_distribution

from tf_bandmf.accounting import event_losses, profiles
from tf_bandmf.accounting.checks import check_epsilon, check_positive, is_number
from tf_bandmf.planning.parts import (
    Loss,
    Part,
    doubled_pair,
    gaussian_loss,
    renyi_accountants,
)

_UNNAMED = "a release made elsewhere"
# An epsilon at which a mechanism with any privacy has delta < 1; rounding errors of
# delta by Fourier transforms.
_LARGE, ROUNDING = 400.0, 1e-12
_KINDS = ("bound", "estimate")


@dataclasses.dataclass(frozen=True)
class ApproximateDP(Part):
    """A release for which one (epsilon, delta) pair is known.

    It composes as the worst mechanism with this pair (Kairouz, Oh, Viswanath, 2015,
    arXiv:1311.0776, Theorem 3.3): with probability delta, everything is revealed;
    otherwise it is randomized response. No composition of pairs alone can be tighter.

    Args:
      epsilon: >= 0.
      delta: in [0, 1); 0 for pure DP, such as the Laplace mechanism.
      replace_one: whether neighbors are data sets in which one unit is replaced by
        another; else one unit is added, removed or zeroed out.
      kind: "bound" if the pair is proven, or "estimate" if not; then the joint
        guarantee is an estimate, too.
      name: for the statement, in one line.

    Raises:
      ValueError: if an argument is out of range.
    """

    epsilon: float
    delta: float = 0.0
    replace_one: bool = False
    kind: str = "bound"
    name: str = _UNNAMED

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        if not (is_number(self.delta) and 0.0 <= self.delta < 1.0):
            raise ValueError(f"delta must be in [0, 1), found {self.delta!r}.")
        if self.kind not in _KINDS:
            raise ValueError(f"kind must be one of {_KINDS}, found {self.kind!r}.")
        _check_name_and_neighbors(self.name, self.replace_one)

    @property
    def replaces(self) -> bool:  # type: ignore[override]
        return self.replace_one

    def stated(self, replaced: bool) -> tuple[float, float]:
        found = float(self.epsilon), float(self.delta)
        return doubled_pair(*found) if self.is_doubled(replaced) else found

    def zcdp(self, replaced: bool) -> float | None:
        # Bun and Steinke, 2016, arXiv:1605.02065, Proposition 1.4.
        epsilon, delta = self.stated(replaced)
        return 0.5 * epsilon**2 if delta == 0.0 else None

    def losses(self, replaced: bool, interval: float) -> list[Loss]:
        epsilon, delta = self.stated(replaced)
        if epsilon == 0.0 and delta == 0.0:
            return []
        return [
            privacy_loss_distribution.from_privacy_parameters(
                common.DifferentialPrivacyParameters(epsilon, delta),
                value_discretization_interval=interval,
            )
        ]

    def divergences(self, replaced: bool) -> tuple[dp_accounting.DpEvent, float]:
        # Randomized response, if not all is revealed; at most the zCDP of its epsilon.
        epsilon, delta = self.stated(replaced)
        none = dp_accounting.NoOpDpEvent()
        return (zcdp_event(0.5 * epsilon**2) if epsilon else none), delta

    def describe(self) -> str:
        return (
            f"{self.name}: (epsilon = {self.epsilon:.6g}, delta = {self.delta:.3g})-DP."
        )


@dataclasses.dataclass(frozen=True)
class ZeroConcentratedDP(Part):
    """A release for which rho of zero-concentrated DP is known.

    Rhos add up (Bun and Steinke, 2016, arXiv:1605.02065, Lemma 1.7). With releases of
    other kinds it composes by its privacy profile, the smallest delta at each epsilon
    that Renyi divergences of at most `rho alpha` at all orders alpha allow by the
    conversion of Canonne, Kamath and Steinke, 2020 (arXiv:2004.00010, Proposition 12).
    For a Gaussian mechanism more is known: state it as an `AccountedEvent`.

    Args:
      rho: > 0.
      replace_one: whether neighbors are data sets in which one unit is replaced by
        another; else one unit is added, removed or zeroed out, and a replacement counts
        four times (Proposition 1.9 there).
      name: for the statement, in one line.

    Raises:
      ValueError: if an argument is out of range.
    """

    rho: float
    replace_one: bool = False
    name: str = _UNNAMED

    def __post_init__(self) -> None:
        check_positive("rho", self.rho)
        _check_name_and_neighbors(self.name, self.replace_one)

    is_zcdp = True

    @property
    def replaces(self) -> bool:  # type: ignore[override]
        return self.replace_one

    def zcdp(self, replaced: bool) -> float:
        return float(self.rho) * (4.0 if self.is_doubled(replaced) else 1.0)

    def has_losses(self, replaced: bool) -> bool:
        return False

    def losses(self, replaced: bool, interval: float) -> list[Loss]:
        return []

    def divergences(self, replaced: bool) -> tuple[dp_accounting.DpEvent, float]:
        return zcdp_event(self.zcdp(replaced)), 0.0

    def describe(self) -> str:
        return f"{self.name}: {self.rho:.6g}-zCDP."


@dataclasses.dataclass(frozen=True)
class AccountedEvent(Part):
    """A release that is an event of dp-accounting.

    Gaussian noise composes exactly. Gaussian or Laplace noise, also after Poisson
    sampling, composes by its privacy loss in each direction; other events that
    `PLDAccountant` knows, by their privacy profile; the rest, by the Renyi divergences
    of `RdpAccountant`. Composed and self-composed events are taken apart.

    Args:
      event: an event of dp-accounting, whose noise multipliers are relative to the
        contribution of one unit (or, with `replace_one`, to the change by a
        replacement).
      replace_one: whether neighbors are data sets in which one unit is replaced by
        another, as for sampling without replacement; else one unit is added, removed or
        zeroed out.
      name: for the statement, in one line.

    Raises:
      TypeError: if this is not an event of dp-accounting.
      ValueError: if the event gives no privacy, or dp-accounting cannot account for it
        under these neighbors.
    """

    event: dp_accounting.DpEvent
    replace_one: bool = False
    name: str = _UNNAMED

    def __post_init__(self) -> None:
        if not isinstance(self.event, dp_accounting.DpEvent):
            raise TypeError(
                f"event must be a dp_accounting.DpEvent, found {self.event!r}."
            )
        _check_name_and_neighbors(self.name, self.replace_one)
        if not self._pieces:
            raise ValueError(f"The event releases nothing: {self.event}. Leave it out.")
        if self.is_gaussian:
            return
        try:
            is_known = self._has_losses or self._has_divergences
            has_privacy = is_known and self._delta_at(_LARGE) < 1.0
        except (ValueError, ArithmeticError) as error:  # of dp-accounting
            raise ValueError(
                f"event must have numbers that dp-accounting accepts, found "
                f"{self.event}: {error}"
            ) from error
        if not is_known:
            neighbors = "replaced" if self.replace_one else "added or removed"
            raise ValueError(
                f"event must be one that dp-accounting can account for where a unit is "
                f"{neighbors}, found {self.event}. Give its (epsilon, delta) as "
                f"ApproximateDP, or its rho as ZeroConcentratedDP."
            )
        if not has_privacy:
            raise ValueError(f"event must have some privacy, found {self.event}.")

    @property
    def replaces(self) -> bool:  # type: ignore[override]
        return self.replace_one

    @property
    def is_gaussian(self) -> bool:  # type: ignore[override]
        return all(
            isinstance(piece, dp_accounting.GaussianDpEvent)
            and 0.0 < piece.noise_multiplier < math.inf
            for piece, _ in self._pieces
        )

    def gaussian_noise(self, replaced: bool) -> float | None:
        if not self.is_gaussian:
            return None
        precision = math.fsum(
            count / piece.noise_multiplier**2 for piece, count in self._pieces
        )
        return (0.5 if self.is_doubled(replaced) else 1.0) / math.sqrt(precision)

    @property
    def kind(self) -> str:  # type: ignore[override]
        return "exact" if self.is_gaussian else "bound"

    def has_losses(self, replaced: bool) -> bool:
        return self.is_gaussian or self.is_doubled(replaced) or self._has_losses

    def losses(self, replaced: bool, interval: float) -> list[Loss]:
        noise = self.gaussian_noise(replaced)
        if noise is not None:
            return [gaussian_loss(noise, interval)]
        if self.is_doubled(replaced):
            doubled = profiles.twice(self._profile)
            return [profiles.dominating_loss(doubled, interval)]
        found, others = [], []
        for piece, count in self._pieces:
            loss = event_losses.additive_loss(piece, count, interval)
            if loss is None:
                others.append(dp_accounting.SelfComposedDpEvent(piece, count))
            else:
                found.append(loss)
        if others:
            rest = AccountedEvent(dp_accounting.ComposedDpEvent(others))
            found.append(profiles.dominating_loss(rest._profile, interval))
        return found

    def divergences(self, replaced: bool) -> tuple[dp_accounting.DpEvent, float] | None:
        noise = self.gaussian_noise(replaced)
        if noise is not None:
            return dp_accounting.GaussianDpEvent(noise), 0.0
        if self.is_doubled(replaced) or not self._has_divergences:
            return None
        return self.event, 0.0

    def describe(self) -> str:
        return f"{self.name}: {self.event}."

    @property
    def _pieces(self) -> list[tuple[dp_accounting.DpEvent, int]]:
        return list(event_losses.pieces(self.event))

    @property
    def _has_losses(self) -> bool:
        # dp-accounting's two accountants mean different things by a replacement.
        supports = pld_privacy_accountant.PLDAccountant().supports
        return not self.replace_one and bool(supports(self.event))

    @property
    def _has_divergences(self) -> bool:
        return self._renyi is not None

    @property
    def _renyi(self) -> rdp.RdpAccountant | None:
        for accountant in renyi_accountants(self.replace_one):
            if accountant.supports(self.event):
                return accountant
        return None

    @functools.cached_property
    def _accountant(self) -> dp_accounting.PrivacyAccountant:
        pld = pld_privacy_accountant.PLDAccountant
        found = pld() if self._has_losses else self._renyi
        assert found is not None  # __post_init__
        return found.compose(self.event)

    def _delta_at(self, epsilon: float) -> float:
        found = float(self._accountant.get_delta(float(epsilon)))
        if not -ROUNDING <= found <= 1.0 + ROUNDING:
            raise ArithmeticError(
                f"The accountant returned delta = {found} for {self.event} at epsilon = "
                f"{epsilon}."
            )
        return min(max(found, 0.0), 1.0)

    def _profile(self, epsilons: np.ndarray) -> np.ndarray:
        return np.array([self._delta_at(epsilon) for epsilon in epsilons])


def zcdp_event(rho: float) -> dp_accounting.DpEvent:
    """An event with Renyi divergences `rho alpha`, also of old versions."""
    return dp_accounting.GaussianDpEvent(1.0 / math.sqrt(2.0 * rho))


def _check_name_and_neighbors(name: str, replace_one: bool) -> None:
    if not isinstance(name, str) or len(name.strip().splitlines()) != 1:
        raise ValueError(f"name must be text of one line, found {name!r}.")
    if not isinstance(replace_one, bool):
        raise ValueError(f"replace_one must be True or False, found {replace_one!r}.")
