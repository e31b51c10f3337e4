"""The budget of a data set for a period: what may be spent, what is, what would fit."""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tf_bandmf.accounting.checks import check_delta, check_positive
from tf_bandmf.accounting.guarantee import REPLACE_ONE
from tf_bandmf.ledger import bounds, times
from tf_bandmf.ledger.balances import Balance
from tf_bandmf.ledger.costs import gaussian_cost

_STEPS_OF_BISECTION = 40
_LEAST_EPSILON = 1e-4
# Sums of what is written in decimals, and of computed values.
_ROUNDING = 1e-9


class Spent(NamedTuple):
    """What an account has spent of a budget.

    Attributes:
      value: epsilon at the budget's delta, or rho.
      method: the theorem that it rests on.
      part: of the budget, 1 for all of it.
    """

    value: float
    method: str
    part: float


@dataclasses.dataclass(frozen=True)
class Budget:
    """What all runs of a period on one data set may spend together.

    Attributes:
      period: its name.
      begins, ends: in UTC, ISO 8601; the end is not part of it. None: no limit.
      epsilon, delta: the budget; or
      rho: that of zCDP.
    """

    period: str
    begins: str | None = None
    ends: str | None = None
    epsilon: float | None = None
    delta: float | None = None
    rho: float | None = None

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.rho is None):
            raise ValueError(
                f"A budget must be epsilon and delta, or rho, found epsilon = "
                f"{self.epsilon}, rho = {self.rho}."
            )
        if self.rho is not None:
            check_positive("rho", self.rho)
            if self.delta is not None:
                raise ValueError("A budget in rho has no delta: leave it out.")
        else:
            check_positive("epsilon", self.epsilon)
            check_delta(self.delta)
        for moment in (self.begins, self.ends):
            if moment is not None:
                times.parsed(moment)
        if self.begins and self.ends and self.begins >= self.ends:
            raise ValueError(
                f"A period must begin before it ends, found {self.begins} to {self.ends}."
            )
        if not isinstance(self.period, str) or not self.period.strip():
            raise ValueError(f"A period must have a name, found {self.period!r}.")

    def covers(self, moment: str) -> bool:
        """Whether a moment, in UTC and ISO 8601, belongs to the period."""
        after = self.begins is None or self.begins <= moment
        return after and (self.ends is None or moment < self.ends)

    def overlaps(self, other: Budget) -> bool:
        """Whether a moment belongs to both periods."""
        first = self.begins is None or other.ends is None or self.begins < other.ends
        second = other.begins is None or self.ends is None or other.begins < self.ends
        return first and second

    def admits(self, balance: Balance) -> bool:
        """Whether an account may have spent this much."""
        if not balance.runs:
            return True
        if self.rho is not None:
            return bounds.zcdp_rho(balance) <= self.rho * (1.0 + _ROUNDING)
        assert self.epsilon is not None and self.delta is not None
        most = self.epsilon * (1.0 + _ROUNDING)
        return bounds.is_within(balance, most, self.delta * (1.0 + _ROUNDING))

    def spent(self, balance: Balance) -> Spent:
        """What an account has spent."""
        if self.rho is not None:
            rho = bounds.zcdp_rho(balance)
            return Spent(rho, "zCDP (valid for adaptive plans)", rho / self.rho)
        assert self.epsilon is not None and self.delta is not None
        epsilon, method = bounds.best(balance, self.delta)
        return Spent(epsilon, method, epsilon / self.epsilon)

    def room(
        self,
        balances: Iterable[Balance],
        delta: float | None = None,
        adjacency: str = "",
    ) -> float:
        """The largest epsilon of a run without amplification that would still fit.

        Args:
          balances: of the accounts that it would spend from.
          delta: of that run; by default the budget's, or 1e-6.
          adjacency: of the data set.

        Returns:
          Epsilon as `tf_bandmf.plan` takes it, rounded down; 0 if nothing fits.
        """
        from tf_bandmf.accounting.gaussian import calibrate_noise_stddev

        balances = list(balances)
        delta = (self.delta or 1e-6) if delta is None else delta
        moved = 2.0 if adjacency == REPLACE_ONE else 1.0

        def fits(epsilon: float) -> bool:
            try:
                mu = 1.0 / calibrate_noise_stddev(epsilon, delta)
            except ValueError:
                return epsilon < 1.0
            stated = epsilon
            if moved > 1.0:
                stated = bounds.gaussian_epsilon(moved * mu, delta)
                if not math.isfinite(stated):
                    return False
            cost = gaussian_cost(moved * mu, stated, delta)
            return all(self.admits(balance.plus(cost)) for balance in balances)

        most = self.epsilon or max(4.0 * self.rho, 10.0 * math.sqrt(self.rho))  # type: ignore[operator,arg-type]
        low, high = _LEAST_EPSILON, 4.0 * most
        if not fits(low):
            return 0.0
        for _ in range(_STEPS_OF_BISECTION):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if fits(middle) else (low, middle)
            if high / low < 1.0 + 1e-4:
                break
        # Four digits, rounded down.
        digits = 3 - math.floor(math.log10(low))
        return math.floor(low * 10**digits * (1.0 + 1e-9)) / 10**digits

    def describe(self) -> str:
        """In a few words, with the period."""
        if self.rho is not None:
            text = f"rho = {self.rho:g}"
        else:
            text = f"(epsilon = {self.epsilon:g}, delta = {self.delta:g})"
        since = self.begins or "ever"
        until = f" until {self.ends}" if self.ends else ""
        always = "" if not (self.begins or self.ends) else f", from {since}{until}"
        return f"{text} for {self.period}{always}"

    def to_json(self) -> dict[str, Any]:
        """Plain values for an entry."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Budget:
        """Reads `to_json`."""
        return cls(**value)


def budget_from(
    epsilon: float | None,
    delta: float | None,
    rho: float | None,
    period: str,
    begins: str | datetime.date | None,
    ends: str | datetime.date | None,
) -> Budget:
    """The budget that a user describes; see `Ledger.set_budget`."""
    return Budget(
        period,
        times.normalized("begins", begins),
        times.normalized("ends", ends),
        None if epsilon is None else float(epsilon),
        None if delta is None else float(delta),
        None if rho is None else float(rho),
    )
