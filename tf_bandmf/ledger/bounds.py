"""Epsilon of all that an account has spent, for runs whose privacy was fixed in advance.

Several bounds hold, and the smallest counts: which of them is smallest depends on the
parameters of the runs alone.

- Gaussian mechanisms compose exactly: their mu^2 add up (Dong, Roth, Su, 2019,
  arXiv:1905.02383, Corollary 3.3). Other runs count as the Gaussian mechanism that they are
  without amplification, or by what they state.
- Privacy loss distributions compose exactly, where there are some: Poisson-sampled runs;
  a run that is known by (epsilon, delta) alone counts as the dominating pair of such
  mechanisms (Kairouz, Oh, Viswanath, 2015, arXiv:1311.0776).
- Renyi divergences add up at each order (Bun and Steinke, 2016, arXiv:1605.02065).
- Basic composition: epsilons add up, and deltas do.

The mechanisms may be chosen adaptively: only their privacy parameters are fixed. Where
they are not, see `filters`.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

from tf_bandmf.ledger.amounts import number
from tf_bandmf.ledger.balances import Balance
from tf_bandmf.ledger.costs import parsed
from tf_bandmf.ledger.renyi import ORDERS, epsilon_of, total_divergence

GAUSSIAN = "composition of Gaussian mechanisms (exact)"
UNAMPLIFIED = "composition of Gaussian mechanisms, without amplification"
MIXED = "composition of Gaussian mechanisms; basic composition with what others state"
RENYI = "composition by Renyi DP"
LOSSES = "composition of privacy loss distributions (dp-accounting)"
BASIC = "basic composition of what each run states"
_INTERVAL = 1e-4
# Beyond it a distribution takes seconds, and the others are about as good.
_MOST_COMPOSED = 4096
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
    if not balance.runs:
        return Bound(0.0, BASIC)
    quick = min(_quick(balance, delta))
    if not has_losses(balance):
        return quick
    return min(quick, Bound(losses_epsilon(balance, delta), LOSSES))


def is_within(balance: Balance, epsilon: float, delta: float) -> bool:
    """Whether an account is within a budget by any of the bounds, the quickest first."""
    if basic(balance, delta) <= epsilon:
        return True
    if is_gaussian_within(gaussian_mu(balance), epsilon, delta):
        return True
    if _is_gaussian(balance):
        return False
    stated = _others(balance)
    mu = math.sqrt(number(balance.gaussian))
    if is_gaussian_within(mu, epsilon - stated.epsilon, delta - stated.delta):
        return True
    if _renyi(balance, delta) <= epsilon:
        return True
    return has_losses(balance) and losses_epsilon(balance, delta) <= epsilon


def basic(balance: Balance, delta: float) -> float:
    """By basic composition; infinite if the deltas alone are more than delta."""
    return number(balance.epsilon) if number(balance.delta) <= delta else math.inf


def gaussian_mu(balance: Balance) -> float:
    """Mu of the Gaussian mechanism that all runs are, without amplification.

    Infinite if one of them is known to be none.
    """
    squares = [number(balance.gaussian)]
    for kind, count in balance.kinds.items():
        mu = parsed(kind).get("mu")
        if mu is None:
            return math.inf
        squares.append(count * mu**2)
    if balance.rest_epsilon or balance.rest_delta:
        return math.inf
    return math.sqrt(math.fsum(squares)) * (1.0 + 1e-15)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The epsilon of a Gaussian mechanism; infinite beyond any meaning."""
    from tf_bandmf.accounting import gaussian

    if mu == 0.0:
        return 0.0
    if not math.isfinite(mu) or not 0.0 < delta < 1.0:
        return math.inf
    try:
        return gaussian.gaussian_epsilon(1.0 / mu, delta)
    except (ValueError, ArithmeticError):  # beyond any meaning
        return math.inf


def is_gaussian_within(mu: float, epsilon: float, delta: float) -> bool:
    """Whether a Gaussian mechanism is (epsilon, delta)-DP: one evaluation of its delta."""
    from tf_bandmf.accounting import gaussian

    if epsilon < 0.0 or not 0.0 < delta < 1.0 or not math.isfinite(mu):
        return False
    return mu == 0.0 or gaussian.gaussian_delta(1.0 / mu, epsilon) <= delta


def _quick(balance: Balance, delta: float) -> list[Bound]:
    """Without privacy loss distributions."""
    is_gaussian = _is_gaussian(balance)
    name = GAUSSIAN if is_gaussian else UNAMPLIFIED
    found = [
        Bound(basic(balance, delta), BASIC),
        Bound(gaussian_epsilon(gaussian_mu(balance), delta), name),
    ]
    if not is_gaussian:
        stated = _others(balance)
        mu = math.sqrt(number(balance.gaussian))
        together = gaussian_epsilon(mu, delta - stated.delta)
        found.append(Bound((stated.epsilon + together) * (1.0 + 1e-12), MIXED))
        found.append(Bound(_renyi(balance, delta), RENYI))
    return found


def _is_gaussian(balance: Balance) -> bool:
    return not (balance.kinds or balance.rest_epsilon or balance.rest_delta)


class _Pair(NamedTuple):
    epsilon: float
    delta: float


def _others(balance: Balance) -> _Pair:
    """What runs that are no Gaussian mechanisms state, by basic composition."""
    kinds = [(parsed(kind), count) for kind, count in balance.kinds.items()]
    epsilon = math.fsum(kind["epsilon"] * count for kind, count in kinds)
    delta = math.fsum(kind["delta"] * count for kind, count in kinds)
    return _Pair(
        (epsilon + number(balance.rest_epsilon)) * (1.0 + 1e-12),
        (delta + number(balance.rest_delta)) * (1.0 + 1e-12),
    )


def _renyi(balance: Balance, delta: float) -> float:
    """The smallest epsilon of all orders."""
    divergences = [(order, total_divergence(balance, order)) for order in ORDERS]
    return min(
        epsilon_of(order, found.divergence, delta - found.leak)
        for order, found in divergences
    )


def has_losses(balance: Balance) -> bool:
    """Whether privacy loss distributions may be better than the other bounds."""
    kinds = balance.kinds
    if not kinds or len(kinds) > _MOST_DISTRIBUTIONS:
        return False
    return all("fixed_size" not in parsed(kind) for kind in kinds)


def losses_epsilon(balance: Balance, delta: float) -> float:
    """By privacy loss distributions; infinite if they cannot be had."""
    try:
        loss = _losses(balance)
        if loss is None:
            return math.inf
        epsilon = float(loss.get_epsilon_for_delta(delta))
    except (ValueError, ArithmeticError, MemoryError):
        return math.inf
    return epsilon if math.isfinite(epsilon) and epsilon >= 0.0 else math.inf


def _losses(balance: Balance) -> Any:
    """The privacy loss of all runs together; None if there is nothing to compose."""
    found = _of_kinds(tuple(sorted(balance.kinds.items())))
    if balance.gaussian:
        found = _together(found, _of_gaussian(balance.gaussian))
    if balance.rest_epsilon or balance.rest_delta:
        pair = _of_pair(number(balance.rest_epsilon), number(balance.rest_delta))
        found = _together(found, pair)
    return found


# What would fit is tried with one account and many Gaussian mechanisms.
@functools.lru_cache(maxsize=16)
def _of_kinds(kinds: tuple[tuple[str, int], ...]) -> Any:
    found = None
    for kind, count in kinds:
        found = _together(found, _of_kind(kind, count))
    return found


def _together(a: Any, b: Any) -> Any:
    return b if a is None else a.compose(b)


@functools.lru_cache(maxsize=64)
def _of_gaussian(units: int) -> Any:
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.from_gaussian_mechanism(
        1.0 / (math.sqrt(number(units)) * (1.0 + 1e-15)),
        value_discretization_interval=_INTERVAL,
    )


def _of_pair(epsilon: float, delta: float) -> Any:
    from dp_accounting.pld import common, privacy_loss_distribution

    return privacy_loss_distribution.from_privacy_parameters(
        common.DifferentialPrivacyParameters(epsilon, delta),
        value_discretization_interval=_INTERVAL,
    )


@functools.lru_cache(maxsize=64)
def _of_kind(kind: str, count: int) -> Any:
    from dp_accounting.pld import privacy_loss_distribution

    fields = parsed(kind)
    if "poisson" in fields:
        probability, noise, queries = fields["poisson"]
        single = privacy_loss_distribution.from_gaussian_mechanism(
            noise,
            value_discretization_interval=_INTERVAL,
            sampling_prob=probability,
        )
        times = queries * count
    else:
        single = _of_pair(fields["epsilon"], fields["delta"])
        times = count
        if times > _MOST_COMPOSED:
            raise ValueError("too many to compose")
    return single.self_compose(times)
