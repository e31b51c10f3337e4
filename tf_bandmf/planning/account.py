"""Which budget a plan spends from: the account in a ledger that it is bound to."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Account:
    """A data set, or partitions of one, in a ledger.

    It is part of a plan's fingerprint: a run of a plan that is bound begins only after the
    ledger has reserved its budget.

    Attributes:
      ledger: id of the ledger, 32 hexadecimal digits.
      dataset: name of the data set there.
      partitions: names of the partitions whose data the run uses; none for all data.
    """

    ledger: str
    dataset: str
    partitions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = (self.ledger, self.dataset, *self.partitions)
        if not all(isinstance(name, str) and name for name in names):
            raise ValueError(
                f"An account must be named by texts, found {names!r}: the plan was "
                f"damaged. Make it again."
            )

    def __str__(self) -> str:
        text = f"data set {self.dataset!r} of ledger {self.ledger[:12]}"
        if self.partitions:
            text = f"partition(s) {', '.join(self.partitions)} of {text}"
        return text

    def to_config(self) -> dict[str, Any]:
        """Plain values; `from_config` rebuilds the account."""
        return {
            "ledger": self.ledger,
            "dataset": self.dataset,
            "partitions": list(self.partitions),
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Account:
        """Rebuilds an account."""
        return cls(
            config["ledger"], config["dataset"], tuple(config.get("partitions", ()))
        )
