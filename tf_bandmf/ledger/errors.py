"""The errors of a ledger."""

from __future__ import annotations


class LedgerError(RuntimeError):
    """Raised if the ledger cannot be used, or refuses a run."""


class BudgetExceededError(LedgerError):
    """Raised if a run or release would spend more than is left; the message says what fits.

    Attributes:
      fitting_epsilon: the largest epsilon at which a run without amplification would
        fit, at the delta of the refused run or release; 0 if no run would fit.
    """

    def __init__(self, message: str, fitting_epsilon: float) -> None:
        super().__init__(message)
        self.fitting_epsilon = fitting_epsilon


class DamagedLedgerError(LedgerError):
    """Raised if entries of the ledger were changed or are missing."""
