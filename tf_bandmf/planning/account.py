"""Which budget a plan spends from: the data set of a ledger that it is bound to."""

from __future__ import annotations

import dataclasses
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tf_bandmf.planning.plan import Plan

# Plans of which bound ones were made, and which themselves reserve nothing; by their ids.
_LEFT_UNBOUND: weakref.WeakValueDictionary[int, Plan] = weakref.WeakValueDictionary()


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
        names = (self.dataset, self.id)
        if not all(isinstance(name, str) and name for name in names):
            raise ValueError(
                f"An account must be named by texts, found {names!r}: the plan was "
                f"damaged. Make it again."
            )

    def __str__(self) -> str:
        return f"data set {self.dataset!r} ({self.id[:12]})"


def bind(plan: Plan, account: Account) -> Plan:
    """A plan whose runs reserve in an account; those of the one given are refused."""
    bound = dataclasses.replace(plan, account=account)
    _LEFT_UNBOUND[id(plan)] = plan
    return bound


def is_left_unbound(plan: Plan) -> bool:
    """Whether a bound plan was made of this very object."""
    return _LEFT_UNBOUND.get(id(plan)) is plan
