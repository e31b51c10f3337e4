"""The errors of a ledger."""

from __future__ import annotations


class LedgerError(RuntimeError):
    """The ledger cannot be used, or does not allow a run."""


class BudgetExceededError(LedgerError):
    """A run or release would spend more than is left; the message says what would fit.

    Attributes:
      fitting_epsilon: the largest epsilon of a run without amplification that would fit,
        at the delta of what was refused; 0 if no run would.
    """

    def __init__(self, message: str, fitting_epsilon: float) -> None:
        super().__init__(message)
        self.fitting_epsilon = fitting_epsilon


class DamagedLedgerError(LedgerError):
    """Entries of the ledger were changed, or are missing."""
