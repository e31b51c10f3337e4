"""The budget that a plan spends from: the data set of a ledger that it is bound to."""

from __future__ import annotations

import dataclasses
import weakref
from typing import TYPE_CHECKING

from tf_bandmf.planning.statement import check_line

if TYPE_CHECKING:
    from tf_bandmf.planning.plan import Plan

# Plans of which bound ones were made, and which themselves reserve nothing.
_LEFT_UNBOUND: weakref.WeakSet[Plan] = weakref.WeakSet()


@dataclasses.dataclass(frozen=True)
class Account:
    """A data set in a ledger.

    It is part of a plan's fingerprint: a run of a plan that is bound begins only after the
    ledger has reserved its budget.

    Attributes:
      dataset: its name.
      id: its id, the digest of its first entry.
    """

    dataset: str
    id: str

    def __post_init__(self) -> None:
        must = "be text: the plan was damaged, make it again"
        for name in ("dataset", "id"):
            check_line(f"{name} of an account", getattr(self, name), must)

    def __str__(self) -> str:
        return f"data set {self.dataset!r} ({self.id[:12]})"


def bind(plan: Plan, account: Account) -> Plan:
    """A plan whose runs reserve in an account; those of the one given are refused."""
    bound = dataclasses.replace(plan, account=account)
    _LEFT_UNBOUND.add(plan)
    return bound


def is_left_unbound(plan: Plan) -> bool:
    """Returns whether a bound plan was made of this very object."""
    return plan in _LEFT_UNBOUND
