"""The errors of a ledger that refuses."""

from __future__ import annotations


class LedgerError(RuntimeError):
    """A ledger that cannot be used, or a run that it does not allow."""


class BudgetExceededError(LedgerError):
    """A run that would spend more than is left; the message says what would fit.

    Attributes:
      fitting_epsilon: of a run without amplification that would fit, at the delta of the
        one that was refused; 0 if none would.
    """

    def __init__(self, message: str, fitting_epsilon: float) -> None:
        super().__init__(message)
        self.fitting_epsilon = fitting_epsilon


class DamagedLedgerError(LedgerError):
    """Entries that were changed, or are missing."""
