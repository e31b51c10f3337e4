"""What an account has spent: sums of costs, which each new one changes by itself.

A balance is small however many runs it holds: Gaussian mechanisms add up to one number,
other runs are counted by kind, and kinds beyond the 200th are added up by basic
composition. Sums are exact (`amounts`): what is settled is taken out again without a trace.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tf_bandmf.ledger.costs import Cost

_MOST_KINDS = 200


@dataclasses.dataclass(frozen=True)
class Balance:
    """What was spent from one account, in units of `amounts`.

    Attributes:
      runs: how many.
      epsilon, delta: sums of what each run states.
      gaussian: sum of the mu^2 of Gaussian mechanisms.
      kinds: how many of each other kind.
      rest_epsilon, rest_delta: sums of kinds that are not counted one by one.
      risk: sum of the probabilities that simulated bounds do not hold.
    """

    runs: int = 0
    epsilon: int = 0
    delta: int = 0
    gaussian: int = 0
    kinds: Mapping[str, int] = dataclasses.field(default_factory=dict)
    rest_epsilon: int = 0
    rest_delta: int = 0
    risk: int = 0

    def plus(self, cost: Cost) -> Balance:
        """With one more run."""
        return self._changed(cost, 1, self.is_rest(cost))

    def minus(self, cost: Cost, is_rest: bool = False) -> Balance:
        """Without a run of this cost.

        Args:
          cost: that was added.
          is_rest: what `is_rest` said when it was.
        """
        return self._changed(cost, -1, is_rest)

    def is_rest(self, cost: Cost) -> bool:
        """Whether the cost would not be counted by its kind."""
        if cost.kind is None or cost.kind in self.kinds:
            return False
        return len(self.kinds) >= _MOST_KINDS

    def _changed(self, cost: Cost, sign: int, is_rest: bool) -> Balance:
        kinds = dict(self.kinds)
        if cost.kind is not None and not is_rest:
            kinds[cost.kind] = kinds.get(cost.kind, 0) + sign
            if kinds[cost.kind] == 0:
                del kinds[cost.kind]
        return Balance(
            self.runs + sign,
            self.epsilon + sign * cost.epsilon,
            self.delta + sign * cost.delta,
            self.gaussian + sign * cost.gaussian,
            kinds,
            self.rest_epsilon + sign * cost.epsilon * is_rest,
            self.rest_delta + sign * cost.delta * is_rest,
            self.risk + sign * cost.risk,
        )

    def __add__(self, other: Balance) -> Balance:
        """The balance of both accounts: the same people's data were used in both."""
        kinds = dict(self.kinds)
        for kind, count in other.kinds.items():
            kinds[kind] = kinds.get(kind, 0) + count
        return Balance(
            self.runs + other.runs,
            self.epsilon + other.epsilon,
            self.delta + other.delta,
            self.gaussian + other.gaussian,
            kinds,
            self.rest_epsilon + other.rest_epsilon,
            self.rest_delta + other.rest_delta,
            self.risk + other.risk,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values for an entry; what is 0 is left out."""
        found = dataclasses.asdict(self)
        return {name: value for name, value in found.items() if value}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Balance:
        """Reads `to_json`."""
        return cls(**value)

    @property
    def key(self) -> tuple[Any, ...]:
        """What is equal exactly if two balances are."""
        values = dataclasses.asdict(self)
        kinds = tuple(sorted(values.pop("kinds").items()))
        return (*values.values(), kinds)


NOTHING_SPENT = Balance()
