"""A ledger, which records the privacy budgets of data sets and the runs that spend them.

The public class is `tf_bandmf.Ledger`. It needs SQLAlchemy:
`pip install "tf-bandmf[ledger]"`.

| module | content |
|---|---|
| `releases` | the cost of one run or release |
| `balances` | the joint cost of all releases, and the remaining budget |
| `chain` | entries, each with the digest of the previous entry |
| `store` | the database, with two tables and one writer at a time per data set |
| `book` | the class `Ledger` |
| `hooks` | functions that must be called before noise is generated |
"""

from __future__ import annotations

import importlib
from typing import Any

from tf_bandmf.ledger.errors import BudgetExceededError as BudgetExceededError
from tf_bandmf.ledger.errors import DamagedLedgerError as DamagedLedgerError
from tf_bandmf.ledger.errors import LedgerError as LedgerError


def __getattr__(name: str) -> Any:
    # These names are imported lazily because only they need SQLAlchemy.
    if name not in ("Ledger", "opened"):
        raise AttributeError(f"module 'tf_bandmf.ledger' has no attribute {name!r}")
    return getattr(importlib.import_module("tf_bandmf.ledger.book"), name)
