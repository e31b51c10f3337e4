"""The budget of an organisation: a ledger of runs that outlives them.

`tf_bandmf.Ledger` is the front door. Needs SQLAlchemy: `pip install "tf-bandmf[ledger]"`.

| file | what it knows |
|---|---|
| `amounts` | exact sums |
| `costs`, `balances` | what one run costs, and what an account has spent |
| `bounds` | what that means: epsilon, and whether another run fits |
| `budgets`, `datasets` | what may be spent, for which period, of whose data |
| `states` | what was spent, and what is left |
| `chain`, `witness`, `verification` | that nothing was changed |
| `schema`, `store`, `watched` | the database |
| `reservations`, `releases` | what runs and other releases write |
| `hooks`, `unbound` | what the code that draws noise calls |
| `views`, `exports`, `report` | what readers see |
| `book` | the ledger |
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tf_bandmf.ledger.book import Ledger, opened
    from tf_bandmf.ledger.budgets import Budget
    from tf_bandmf.ledger.errors import (
        BudgetExceededError,
        DamagedLedgerError,
        LedgerError,
    )
    from tf_bandmf.ledger.states import AccountState

__all__ = [
    "AccountState",
    "Budget",
    "BudgetExceededError",
    "DamagedLedgerError",
    "Ledger",
    "LedgerError",
    "opened",
]

_HOMES = {
    "AccountState": "states",
    "Budget": "budgets",
    "BudgetExceededError": "errors",
    "DamagedLedgerError": "errors",
    "Ledger": "book",
    "LedgerError": "errors",
    "opened": "book",
}


def __getattr__(name: str) -> Any:
    # SQLAlchemy is needed for what uses it alone.
    if name not in _HOMES:
        raise AttributeError(f"module 'tf_bandmf.ledger' has no attribute {name!r}")
    return getattr(importlib.import_module(f"tf_bandmf.ledger.{_HOMES[name]}"), name)
