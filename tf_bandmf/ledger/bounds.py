"""Epsilon of all that an account has spent, for runs whose privacy was fixed in advance.

`tf_bandmf.compose` composes, and its numbers count. Bounds that need no privacy loss
distribution stand beside it, also where it gives none (a tiny delta, an epsilon beyond any
meaning): basic composition, sums of rho, and all as Gaussian mechanisms without
amplification. Runs of one Poisson-sampled kind alone are what their accountant says.

The mechanisms may be chosen adaptively: only their privacy parameters are fixed.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import dp_accounting
from dp_accounting.pld import common, privacy_loss_distribution

from tf_bandmf.accounting import event_losses, gaussian, profiles
from tf_bandmf.accounting.cyclic_poisson import CyclicPoissonAccountant
from tf_bandmf.ledger.amounts import amount, number
from tf_bandmf.ledger.balances import Balance
from tf_bandmf.ledger.costs import parsed
from tf_bandmf.planning.composition import BASIC, GAUSSIAN, UNAMPLIFIED, compose
from tf_bandmf.planning.elsewhere import AccountedEvent, ApproximateDP
from tf_bandmf.planning.joint_losses import composed_loss
from tf_bandmf.planning.parts import Loss, Part, gaussian_loss

ZCDP = "composition of zCDP"
_MANY = 1.0 + 1e-12  # above the rounding of sums
# Beyond it a balance takes seconds, and the other bounds are about as good.
_MOST_DISTRIBUTIONS = 32


class Bound(NamedTuple):
    """An epsilon, and the theorem that gives it."""

    epsilon: float
    method: str


def best(balance: Balance, delta: float) -> Bound:
    """The smallest epsilon at delta that is known.

    Returns:
      Epsilon >= 0, infinite if none is known.
    """
    name = GAUSSIAN if _is_gaussian(balance) else UNAMPLIFIED
    unamplified = Bound(gaussian_epsilon(gaussian_mu(balance), delta), name)
    rho = zcdp_rho(balance)
    # Bun and Steinke, 2016, arXiv:1605.02065, Proposition 1.3.
    concentrated = Bound(rho + 2.0 * math.sqrt(-rho * math.log(delta)), ZCDP)
    quick = min(Bound(basic(balance, delta), BASIC), unamplified, concentrated)
    is_stated = balance.runs == 1 and number(balance.delta) == delta
    if _is_gaussian(balance) or (is_stated and quick.method == BASIC):
        return quick
    alone = _poisson_alone(balance, delta)
    return min(quick, _composed(balance, delta) if alone is None else alone)


def is_within(balance: Balance, epsilon: float, delta: float) -> bool:
    """Whether an account is within a budget by any of the bounds, the quickest first."""
    if basic(balance, delta) <= epsilon:
        return True
    if _is_gaussian_within(gaussian_mu(balance), epsilon, delta):
        return True
    return not _is_gaussian(balance) and best(balance, delta).epsilon <= epsilon


def basic(balance: Balance, delta: float) -> float:
    """By basic composition; infinite if the deltas alone are more than delta."""
    return number(balance.epsilon) if number(balance.delta) <= delta else math.inf


def zcdp_rho(balance: Balance) -> float:
    """Rho of zCDP of all runs; infinite if one of them has none."""
    parts = [0.5 * number(balance.gaussian)]
    parts += [count * _rho_of(parsed(kind)) for kind, count in balance.kinds.items()]
    if balance.rest_delta:
        return math.inf
    parts.append(0.5 * number(balance.rest_epsilon) ** 2)
    return math.fsum(parts) * _MANY


def gaussian_mu(balance: Balance) -> float:
    """Mu of the Gaussian mechanism that all runs are, without amplification.

    Infinite if one of them is known to be none.
    """
    if balance.rest_epsilon or balance.rest_delta:
        return math.inf
    squares = [number(balance.gaussian)]
    for kind, count in balance.kinds.items():
        squares.append(count * parsed(kind).get("mu", math.inf) ** 2)
    return math.sqrt(math.fsum(squares)) * (1.0 + 1e-15)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The epsilon of a Gaussian mechanism; infinite beyond any meaning."""
    if mu == 0.0:
        return 0.0
    if not math.isfinite(mu) or not 0.0 < delta < 1.0:
        return math.inf
    try:
        return gaussian.gaussian_epsilon(1.0 / mu, delta)
    except (ValueError, ArithmeticError):  # beyond any meaning
        return math.inf


def _is_gaussian_within(mu: float, epsilon: float, delta: float) -> bool:
    """One evaluation of delta, where `gaussian_epsilon` takes many."""
    if not math.isfinite(mu):
        return False
    return mu == 0.0 or gaussian.gaussian_delta(1.0 / mu, epsilon) <= delta


def _is_gaussian(balance: Balance) -> bool:
    return not (balance.kinds or balance.rest_epsilon or balance.rest_delta)


def _rho_of(fields: dict[str, float]) -> float:
    """Bun and Steinke, 2016, arXiv:1605.02065, Propositions 1.4 and 1.6."""
    found = [fields.get("rho", math.inf), 0.5 * fields.get("mu", math.inf) ** 2]
    if fields["delta"] == 0.0:
        found.append(0.5 * fields["epsilon"] ** 2)
    return min(found)


def _poisson_alone(balance: Balance, delta: float) -> Bound | None:
    """What the accountant says, if all runs are Poisson-sampled in the same way."""
    if balance.gaussian or balance.rest_epsilon or balance.rest_delta:
        return None
    ((kind, count), *others) = balance.kinds.items()
    if others or "poisson" not in parsed(kind):
        return None
    probability, noise, queries = parsed(kind)["poisson"]
    accountant = CyclicPoissonAccountant(queries * count, probability)
    try:
        epsilon = accountant.epsilon(delta, noise)
    except (ValueError, ArithmeticError):
        epsilon = math.inf
    return Bound(epsilon, accountant.claims[0][0])


def _composed(balance: Balance, delta: float) -> Bound:
    """By `compose`; infinite where it gives no number."""
    parts: list[Part] = [_Gaussians(balance)] if balance.gaussian else []
    if balance.kinds:
        parts.append(_Kinds(tuple(sorted(balance.kinds.items()))))
    if balance.rest_epsilon or balance.rest_delta:
        rest = number(balance.rest_epsilon), number(balance.rest_delta)
        if rest[1] >= 1.0:
            return Bound(math.inf, BASIC)
        parts.append(ApproximateDP(*rest))
    try:
        found = compose(parts).guarantee_at(delta)
    except (ValueError, ArithmeticError, MemoryError):
        return Bound(math.inf, BASIC)
    return Bound(found.epsilon, found.accountant)


class _Gaussians(Part):
    """All Gaussian mechanisms of a balance, for the data set's adjacency."""

    replaces, is_gaussian, kind = False, True, "exact"

    def __init__(self, balance: Balance) -> None:
        self._mu = math.sqrt(number(balance.gaussian)) * (1.0 + 1e-15)
        epsilon, delta = balance.rest_epsilon, balance.rest_delta
        for kind, count in balance.kinds.items():
            epsilon += count * amount(parsed(kind)["epsilon"])
            delta += count * amount(parsed(kind)["delta"])
        stated = number(balance.epsilon - epsilon), number(balance.delta - delta)
        self._stated = stated

    def describe(self) -> str:
        return "Gaussian mechanisms"

    def stated(self, replaced: bool) -> tuple[float, float]:
        return self._stated

    def gaussian_noise(self, replaced: bool) -> float:
        return 1.0 / self._mu

    def losses(self, replaced: bool, interval: float) -> list[Loss]:
        return [gaussian_loss(1.0 / self._mu, interval)]


class _Kinds(Part):
    """All runs that are no Gaussian mechanisms, for the data set's adjacency.

    Their costs are for this adjacency already: to `compose` it is zero-out.

    Args:
      kinds: each with how many there are, sorted.
    """

    replaces = False

    def __init__(self, kinds: tuple[tuple[str, int], ...]) -> None:
        self._kinds = kinds

    def describe(self) -> str:
        return f"{sum(count for _, count in self._kinds)} releases"

    def gaussian_noise(self, replaced: bool) -> float | None:
        mu = gaussian_mu(Balance(kinds=dict(self._kinds)))
        return 1.0 / mu if mu and math.isfinite(mu) else None

    def zcdp(self, replaced: bool) -> float | None:
        rho = zcdp_rho(Balance(kinds=dict(self._kinds)))
        return rho if math.isfinite(rho) else None

    def stated(self, replaced: bool) -> tuple[float, float]:
        fields = [(parsed(kind), count) for kind, count in self._kinds]
        return (
            math.fsum(each["epsilon"] * count for each, count in fields) * _MANY,
            math.fsum(each["delta"] * count for each, count in fields) * _MANY,
        )

    def losses(self, replaced: bool, interval: float) -> list[Loss]:
        if len(self._kinds) > _MOST_DISTRIBUTIONS:
            noise = self.gaussian_noise(replaced)
            if noise is None:
                raise ValueError("too many kinds of releases to compose")
            return [gaussian_loss(noise, interval)]
        return [_loss_of_kinds(self._kinds, interval)]


# What would fit is tried with one account and many Gaussian mechanisms.
@functools.lru_cache(maxsize=16)
def _loss_of_kinds(kinds: tuple[tuple[str, int], ...], interval: float) -> Loss:
    return composed_loss([_kind_part(*each) for each in kinds], False, interval)


@functools.lru_cache(maxsize=64)
def _kind_part(kind: str, count: int) -> Part:
    fields = parsed(kind)
    if "poisson" in fields:
        probability, noise, queries = fields["poisson"]
        query = dp_accounting.PoissonSampledDpEvent(
            probability, dp_accounting.GaussianDpEvent(noise)
        )
        return AccountedEvent(dp_accounting.SelfComposedDpEvent(query, queries * count))
    return (_FixedSize if "fixed_size" in fields else _Pairs)(kind, count)


class _Pairs(Part):
    """Releases of which (epsilon, delta), and perhaps mu or rho, are known."""

    replaces = False

    def __init__(self, kind: str, count: int) -> None:
        self._fields, self._count = parsed(kind), count
        self._losses: dict[float, Loss] = {}

    def describe(self) -> str:
        return f"{self._count} releases"

    def losses(self, replaced: bool, interval: float) -> list[Loss]:
        if interval not in self._losses:
            self._losses[interval] = self._loss(interval)
        return [self._losses[interval]]

    def _loss(self, interval: float) -> Loss:
        fields = self._fields
        pair = fields["epsilon"], fields["delta"]
        known = [profiles.pair_profile(*pair)]
        if "mu" in fields:
            known.append(profiles.gaussian_profile(1.0 / fields["mu"]))
        if "rho" in fields:
            known.append(profiles.zcdp_profile(fields["rho"]))
        if len(known) == 1:
            single = _loss_of_pair(*pair, interval)
        else:
            profile = profiles.least(*known)
            single = profiles.dominating_loss(profile, interval, [pair[0]])
        if self._count == 1:
            return single
        # As `event_losses.additive_loss`.
        rounding = event_losses.rounding_of_transforms(self._count)
        unbounded = _loss_of_pair(0.0, rounding, interval)
        return single.self_compose(self._count).compose(unbounded)


class _FixedSize(Part):
    """Samples without replacement: Renyi divergences, of replacements."""

    replaces = True

    def __init__(self, kind: str, count: int) -> None:
        fields = parsed(kind)
        part, batch, noise, queries = fields["fixed_size"]
        self._mu = fields["mu"] * math.sqrt(count)
        query = dp_accounting.SampledWithoutReplacementDpEvent(
            part, batch, dp_accounting.GaussianDpEvent(noise)
        )
        self._event = dp_accounting.SelfComposedDpEvent(query, queries * count)

    def describe(self) -> str:
        return "samples without replacement"

    def gaussian_noise(self, replaced: bool) -> float:
        return 1.0 / self._mu

    def has_losses(self, replaced: bool) -> bool:
        return False

    def losses(self, replaced: bool, interval: float) -> list[Loss]:
        return []

    def divergences(self, replaced: bool) -> tuple[dp_accounting.DpEvent, float]:
        return self._event, 0.0


def _loss_of_pair(epsilon: float, delta: float, interval: float) -> Loss:
    return privacy_loss_distribution.from_privacy_parameters(
        common.DifferentialPrivacyParameters(epsilon, delta),
        value_discretization_interval=interval,
    )
