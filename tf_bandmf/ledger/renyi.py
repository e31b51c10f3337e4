"""Renyi divergences of what an account has spent, and what they say of epsilon.

A run that is known by (epsilon, delta) alone is dominated by a mechanism that tells
everything with probability delta, and else is epsilon-DP (Kairouz, Oh, Viswanath, 2015,
arXiv:1311.0776): its divergence is that of randomized response, and delta leaks beside it
(approximate zCDP: Bun and Steinke, 2016, arXiv:1605.02065, section 8).
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

from tf_bandmf.ledger.amounts import number
from tf_bandmf.ledger.balances import Balance
from tf_bandmf.ledger.costs import parsed

ORDERS = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 128.0)


class Divergence(NamedTuple):
    """At one order; but for an event of probability `leak`."""

    divergence: float
    leak: float


def total_divergence(balance: Balance, order: float) -> Divergence:
    """Renyi divergence of all runs of an account together.

    Each kind counts as what has the smallest divergence at the order.
    """
    parts = [0.5 * order * number(balance.gaussian)]
    leaks = [number(balance.rest_delta)]
    for kind, count in balance.kinds.items():
        found = _of_kind(kind, order)
        parts.append(count * found.divergence)
        leaks.append(count * found.leak)
    if balance.rest_epsilon:
        parts.append(randomized_response(number(balance.rest_epsilon), order))
    # Sums of floats, on the safe side.
    return Divergence(math.fsum(parts) * (1 + 1e-12), math.fsum(leaks) * (1 + 1e-12))


def epsilon_of(order: float, divergence: float, delta: float) -> float:
    """Epsilon at delta (Canonne, Kamath, Steinke, 2020, arXiv:2004.00010, Prop. 12).

    Returns:
      Epsilon >= 0; infinite if delta is not in (0, 1).
    """
    if not 0.0 < delta < 1.0 or not math.isfinite(divergence):
        return math.inf
    bound = (
        divergence
        + math.log1p(-1.0 / order)
        - (math.log(delta) + math.log(order)) / (order - 1.0)
    )
    return max(bound, 0.0)


def randomized_response(epsilon: float, order: float) -> float:
    """Renyi divergence of any epsilon-DP mechanism, at most.

    That of the answers of randomized response, of which it is a function.
    """
    # log((p^a q^(1-a)) + (q^a p^(1-a))) with p = e^eps / (1 + e^eps), q = 1 - p.
    larger = order * epsilon
    smaller = (1.0 - order) * epsilon
    top = larger + math.log1p(math.exp(smaller - larger))
    value = top - epsilon - math.log1p(math.exp(-epsilon))
    return min(max(value / (order - 1.0), 0.0), epsilon)


@functools.lru_cache(maxsize=4096)
def _of_kind(kind: str, order: float) -> Divergence:
    fields = parsed(kind)
    leaky = Divergence(randomized_response(fields["epsilon"], order), fields["delta"])
    whole = [
        value
        for value in (
            _times(fields.get("rho"), order),
            _times(_half_square(fields.get("mu")), order),
            _sampled(fields, order),
        )
        if value is not None and math.isfinite(value)
    ]
    # Without a leak, where that is known.
    return Divergence(min(whole), 0.0) if whole else leaky


def _half_square(mu: float | None) -> float | None:
    return None if mu is None else 0.5 * mu**2


def _times(rho: float | None, order: float) -> float | None:
    return None if rho is None else rho * order


def _sampled(fields: dict[str, Any], order: float) -> float | None:
    """By the Renyi accountant of dp-accounting."""
    import dp_accounting
    from dp_accounting import rdp

    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    event: dp_accounting.DpEvent
    if "poisson" in fields:
        probability, noise, count = fields["poisson"]
        event = dp_accounting.PoissonSampledDpEvent(
            probability, dp_accounting.GaussianDpEvent(noise)
        )
    elif "fixed_size" in fields:
        part, batch, noise, count = fields["fixed_size"]
        relation = dp_accounting.NeighboringRelation.REPLACE_ONE
        event = dp_accounting.SampledWithoutReplacementDpEvent(
            part, batch, dp_accounting.GaussianDpEvent(noise)
        )
    else:
        return None
    accountant = rdp.RdpAccountant(orders=[order], neighboring_relation=relation)
    accountant.compose(event, count)
    return float(accountant._rdp[0])
