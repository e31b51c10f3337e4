"""The account of a plan: a data set with a budget that the plan's runs spend."""

from __future__ import annotations

import dataclasses
import weakref
from typing import TYPE_CHECKING

from tf_bandmf.planning.statement import check_line

if TYPE_CHECKING:
    from tf_bandmf.planning.plan import Plan

# The plans that were passed to `bind`. These objects stay unbound: a run of one of them
# would not reserve budget in the ledger, so such runs are refused.
_LEFT_UNBOUND: weakref.WeakSet[Plan] = weakref.WeakSet()


@dataclasses.dataclass(frozen=True)
class Account:
    """A data set with a budget in a privacy ledger.

    If a plan is bound to an account, its fingerprint covers the account, and its runs
    start only after the ledger has reserved their budget.

    Attributes:
      dataset: the data set's name.
      id: the data set's id, the digest of its first entry in the ledger.
    """

    dataset: str
    id: str

    def __post_init__(self) -> None:
        must = "be text (the plan was damaged; make it again)"
        for name in ("dataset", "id"):
            check_line(f"{name} of an account", getattr(self, name), must)

    def __str__(self) -> str:
        return f"data set {self.dataset!r} ({self.id[:12]})"


def bind(plan: Plan, account: Account) -> Plan:
    """Returns a copy of `plan` that is bound to `account`.

    After this call, runs of the original plan are refused.
    """
    bound = dataclasses.replace(plan, account=account)
    _LEFT_UNBOUND.add(plan)
    return bound


def is_left_unbound(plan: Plan) -> bool:
    """Returns True if `bind` made a bound copy of this plan, which itself stays unbound."""
    return plan in _LEFT_UNBOUND
