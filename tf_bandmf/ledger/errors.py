"""The exceptions that a ledger raises."""

from __future__ import annotations


class LedgerError(RuntimeError):
    """Raised if the ledger cannot be used, or refuses a run."""


class BudgetExceededError(LedgerError):
    """Raised if a run or release would spend more than the remaining budget.

    Attributes:
      fitting_epsilon: the maximum epsilon of an unamplified run that would fit, at the
        delta of the refused run or release, or 0 if no run would fit.
    """

    def __init__(self, message: str, fitting_epsilon: float) -> None:
        super().__init__(message)
        self.fitting_epsilon = fitting_epsilon


class DamagedLedgerError(LedgerError):
    """Raised if entries of the ledger are missing or were changed."""
