"""Functions that report runs to a ledger, for code that generates noise.

The functions do not depend on a training framework. They need SQLAlchemy only if a plan
is bound to a ledger.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from tf_bandmf.ledger.errors import LedgerError
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.planning.account import is_left_unbound

if TYPE_CHECKING:
    from tf_bandmf.planning.plan import Plan


def is_needed(plan: Plan) -> bool:
    """Returns True if a run of the plan must call `begin` before it generates noise."""
    return plan.account is not None or is_left_unbound(plan)


def name_of(key: NoiseKey) -> str:
    """Returns the name of a run in a ledger, a digest that does not reveal the key."""
    content = b"tf-bandmf run in a ledger" + key.secret_bytes()
    return hashlib.sha256(content).hexdigest()


def begin(plan: Plan, run: str) -> Any:
    """Reserves a run's cost before the run generates noise.

    Args:
      plan: the run's plan.
      run: the run's name, from `name_of`. A resumed run has the same name and reserves
        nothing more.

    Returns:
      The ledger entry of the reservation; None if the plan is not bound to a ledger.

    Raises:
      LedgerError: if the ledger refuses the run or is not open, or if `plan` is the plan
        that was passed to `Ledger.bind` instead of the plan that `Ledger.bind` returned.
    """
    if plan.account is not None:
        return _ledger(plan).begin(plan, run)
    if is_left_unbound(plan):
        raise LedgerError(
            "The run uses a plan that was passed to ledger.bind(...). Use the plan that "
            "ledger.bind returns: plan = ledger.bind(plan, dataset)."
        )
    return None


def note_steps(plan: Plan, run: str, steps: int) -> None:
    """Records the number of steps (or rounds) that a run has taken so far."""
    if plan.account is not None:
        _ledger(plan).note_steps(run, steps)


def end(plan: Plan, run: str, steps: int, reason: str) -> Any:
    """Ends a run early, frees its unused budget, and returns the new ledger entry."""
    return _ledger(plan).end(run, plan=plan, steps=steps, reason=reason)


def _ledger(plan: Plan) -> Any:
    from tf_bandmf.ledger.book import opened

    assert plan.account is not None
    return opened(plan.account)
