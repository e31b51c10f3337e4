"""Filters and odometers: budgets for runs whose privacy depends on earlier results.

An analyst who looks at a model before he decides how much the next one may spend chooses
privacy parameters adaptively. Composition theorems for fixed parameters do not cover that,
and the privacy loss distributions of chosen runs may not be composed. A *filter* is a rule
that says before each run whether it may begin, such that everything that was let through is
(epsilon, delta)-DP (Rogers, Roth, Ullman, Vadhan, 2016, arXiv:1605.08294). Three are used:

- `gaussian`: mu^2 of the Gaussian mechanisms add up to at most that of the Gaussian
  mechanism of the budget (Smith and Thakurta, 2022, arXiv:2210.17520);
- `renyi`: Renyi divergences at one order, which the budget fixes, add up to at most what
  (epsilon, delta) allows at that order (Feldman and Zrnic, 2021, arXiv:2008.11193); what
  leaks beside them is taken from delta (Whitehouse, Ramdas, Rogers, Wu, 2023,
  arXiv:2203.05481, who show it for approximate zCDP);
- `basic`: epsilons and deltas add up to at most the budget.

**Several filters.** Give filter k the budget (epsilon, delta_k), with the sum of the
delta_k = delta, and let a run begin if any of them does. All that was let through is
(epsilon, delta)-DP: let F_k be the event that k is the first filter that still agrees at
the end. On F_k the outputs are those of the process that filter k alone would have let
through, for which P(S, F_k) <= e^epsilon Q(S, F_k) + delta_k; the sum over k is the claim.

An *odometer* bounds the loss at every moment at once: `odometer_epsilon`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tf_bandmf.ledger import bounds
from tf_bandmf.ledger.amounts import number
from tf_bandmf.ledger.balances import Balance
from tf_bandmf.ledger.costs import parsed
from tf_bandmf.ledger.renyi import ORDERS, epsilon_of, total_divergence

# Parts of delta, by default.
SHARES: Mapping[str, float] = {"gaussian": 0.5, "renyi": 0.25, "basic": 0.25}


def check_shares(shares: Mapping[str, float]) -> None:
    """Raises ValueError unless these are parts of delta for known filters."""
    known = all(name in SHARES for name in shares)
    if not known or not all(0.0 < part <= 1.0 for part in shares.values()):
        raise ValueError(
            f"filters must give parts of delta, in (0, 1], to {', '.join(SHARES)}, found "
            f"{dict(shares)!r}."
        )
    if math.fsum(shares.values()) > 1.0 or not shares:
        raise ValueError(
            f"The parts of delta that filters get must add up to at most 1, found "
            f"{dict(shares)!r}."
        )


def needed_epsilon(balance: Balance, name: str, delta: float, order: float) -> float:
    """The epsilon of the smallest budget at delta with which a filter lets all through.

    Args:
      balance: of the account.
      name: of the filter.
      delta: what it has of the budget's.
      order: that the budget fixes, of `renyi`.
    """
    if name == "gaussian":
        return bounds.gaussian_epsilon(bounds.gaussian_mu(balance), delta)
    if name == "basic":
        return bounds.basic(balance, delta)
    found = total_divergence(balance, order)
    return epsilon_of(order, found.divergence, delta - found.leak)


def lets_through(
    balance: Balance, name: str, epsilon: float, delta: float, order: float
) -> bool:
    """Whether a filter with this budget lets all of an account through.

    Args:
      balance: of the account.
      name: of the filter.
      epsilon: of the budget.
      delta: what the filter has of the budget's.
      order: that the budget fixes, of `renyi`.
    """
    if name == "gaussian":
        return bounds.is_gaussian_within(bounds.gaussian_mu(balance), epsilon, delta)
    return needed_epsilon(balance, name, delta, order) <= epsilon


def fixed_order(epsilon: float, delta: float) -> float:
    """The order at which the Renyi filter of a budget works.

    The one of `ORDERS` at which a Gaussian mechanism could spend most.
    """
    # The mu^2 that each order allows; all of it is decided by the budget alone.
    return max(
        ORDERS, key=lambda order: (epsilon - epsilon_of(order, 0.0, delta)) / order
    )


def zcdp_rho(balance: Balance) -> float:
    """Rho of zCDP of all runs; infinite if one of them has none."""
    parts = [0.5 * number(balance.gaussian)]
    for kind, count in balance.kinds.items():
        rho = _rho_of_kind(kind)
        if rho is None:
            return math.inf
        parts.append(count * rho)
    if balance.rest_delta:
        return math.inf
    parts.append(0.5 * number(balance.rest_epsilon) ** 2)
    return math.fsum(parts) * (1.0 + 1e-12)


def _rho_of_kind(kind: str) -> float | None:
    """Bun and Steinke, 2016, arXiv:1605.02065, Propositions 1.4 and 1.6."""
    fields = parsed(kind)
    found = []
    if fields.get("mu") is not None:
        found.append(0.5 * fields["mu"] ** 2)
    if fields.get("rho") is not None:
        found.append(fields["rho"])
    if fields["delta"] == 0.0:
        found.append(0.5 * fields["epsilon"] ** 2)
    return min(found, default=None)


def odometer_epsilon(rho: float, delta: float, expected_rho: float) -> float:
    """A bound on the privacy loss that holds at all moments at once.

    With probability at least 1 - delta the loss never exceeds the value for the rho that
    was spent until then, whatever was chosen adaptively: for a fixed order a,
    exp((a - 1) (loss - a rho)) is a supermartingale, and Ville's inequality does the rest
    (Whitehouse, Ramdas, Rogers, Wu, 2023, arXiv:2203.05481). It is a line in rho, and
    tightest at `expected_rho`.

    Args:
      rho: of zCDP that was spent.
      delta: in (0, 1).
      expected_rho: > 0, fixed in advance: that of the whole budget.
    """
    if not math.isfinite(rho):
        return math.inf
    surplus = math.sqrt(math.log(1.0 / delta) / expected_rho)
    return (1.0 + surplus) * rho + math.log(1.0 / delta) / surplus
