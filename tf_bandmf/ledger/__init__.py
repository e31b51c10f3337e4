"""The ledger of an organisation: budgets of data sets, and the runs that spend them.

Use it by `tf_bandmf.Ledger`. It needs SQLAlchemy: `pip install "tf-bandmf[ledger]"`.

| file | what it has |
|---|---|
| `releases` | what one run or release costs |
| `balances` | the joint cost of all, by `tf_bandmf.compose`; what would still fit |
| `chain` | entries, each with the digest of the one before it |
| `store` | the database: two tables, one writer of a data set at a time |
| `book` | the ledger |
| `hooks` | what the code that draws noise calls |
"""

from __future__ import annotations

import importlib
from typing import Any

from tf_bandmf.ledger.errors import (
    BudgetExceededError,
    DamagedLedgerError,
    LedgerError,
)

__all__ = ["BudgetExceededError", "DamagedLedgerError", "LedgerError"]


def __getattr__(name: str) -> Any:
    # Only these names need SQLAlchemy.
    if name not in ("Ledger", "opened"):
        raise AttributeError(f"module 'tf_bandmf.ledger' has no attribute {name!r}")
    return getattr(importlib.import_module("tf_bandmf.ledger.book"), name)
