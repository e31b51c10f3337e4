"""The budget that a run has reserved in the ledger that its plan is bound to.

A run reserves its budget at its first step: after all checks that the step may be taken,
before noise is added to anything. So a model that is only loaded or compiled again
reserves nothing, and a run that has not reserved releases no noisy gradient.
"""

from __future__ import annotations

import warnings
from typing import Any

from tf_bandmf.ledger import hooks
from tf_bandmf.ledger.errors import LedgerError
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.planning.plan import Plan

ENDED = (
    "The run has ended (end_run), and its unused share was given back to the budget. "
    "Start a new run with a new PrivateOptimizer."
)


class Reservation:
    """The reservation of one run; it does nothing if the plan is bound to no ledger.

    Args:
      plan: plan of the run.
      key: key of the run; None before the run has begun.
    """

    def __init__(self, plan: Plan, key: NoiseKey | None = None) -> None:
        self._plan = plan
        self._run = "" if key is None else hooks.name_of(key)
        self._entry: Any = None
        self._noted_steps = 0
        self._has_ended = False

    def ensure(self) -> None:
        """Reserves the run's budget, or finds the run's earlier reservation.

        Raises:
          LedgerError: if the ledger refuses, cannot be written, or is not open; or the run
            has ended.
        """
        if self._has_ended:
            raise LedgerError(ENDED)
        self._entry = hooks.begin(self._plan, self._run)

    def refuse_ended(self) -> None:
        """Raises LedgerError if the run has been ended in the ledger."""
        if self._has_ended or self._entry is not None:
            self.ensure()

    def note(self, steps: int) -> None:
        """Records in the ledger how many steps were taken, if this is not recorded yet."""
        if self._entry is None or steps <= self._noted_steps:
            return
        try:
            hooks.note_steps(self._plan, self._run, steps)
            self._noted_steps = steps
        except LedgerError as error:
            # Only a warning: the budget is reserved already, and the note spends nothing.
            warnings.warn(
                f"The ledger could not record that {steps} steps were taken: {error}",
                stacklevel=3,
            )

    def end(self, steps: int, reason: str) -> Any:
        """Ends the run after this many steps, and gives back the cost of all others.

        Raises:
          ValueError: if the plan is bound to no ledger, or the run has not begun.
        """
        if self._plan.account is None or not self._run:
            raise ValueError(
                "Only a run that has begun, and whose plan is bound to a ledger, can be "
                "ended: see ledger.bind(plan, dataset)."
            )
        self.ensure()
        # Set first: no further step is allowed, even if writing to the ledger fails.
        self._has_ended = True
        return hooks.end(self._plan, self._run, steps, reason)

    def remarks(self) -> list[str]:
        """Remarks of the statement on the reservation."""
        account = self._plan.account
        if account is None:
            return []
        if self._entry is None:
            return [f"Bound to the budget of {account}; nothing is reserved yet."]
        return [f"Reserved in the budget of {account}: entry {self._entry.name}."]
