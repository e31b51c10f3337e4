"""The ledger for an auditor: a table of all entries, and all of it for machines."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from typing import TYPE_CHECKING, Any

from tf_bandmf.ledger.chain import Entry

if TYPE_CHECKING:
    from tf_bandmf.ledger.book import Ledger
    from tf_bandmf.ledger.states import AccountState

_FIELDS = (
    "plan",
    "mechanism",
    "about",
    "epsilon",
    "delta",
    "rho",
    "num_steps",
    "steps",
    "period",
    "partitions",
    "reason",
    "to",
)
_OWN = ("number", "at", "who", "kind", "dataset", "run")
COLUMNS = (*_OWN, *_FIELDS, "previous", "digest")
# Programs take what begins so for a formula.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


def to_csv(entries: list[Entry]) -> str:
    """One line for each entry, with a line of headings; UTF-8, RFC 4180."""
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerow(COLUMNS)
    for entry in entries:
        body = entry.body
        values = [getattr(entry, name) for name in _OWN]
        values += [body.get(name) for name in _FIELDS]
        writer.writerow([*map(_cell, values), entry.previous, entry.digest])
    return stream.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        value = " ".join(map(str, value))
    if isinstance(value, (int, float)):
        return repr(value)
    text = str(value)
    return f"'{text}" if text.startswith(_FORMULAS) else text


def to_json(ledger: Ledger, entries: list[Entry]) -> str:
    """All entries as they are, what is spent, and what verification says.

    `text` of an entry is what its digest is computed from: SHA-256 of canonical JSON of all
    other fields.
    """
    found = ledger.verify()
    record = {
        "ledger": ledger.id,
        "head": found.head,
        "is_intact": found.is_intact,
        "problems": list(found.problems),
        "accounts": [
            state_record(state)
            for dataset in ledger.datasets()
            for state in ledger.spent(dataset.name)
        ],
        "entries": [dataclasses.asdict(entry) for entry in entries],
    }
    return json.dumps(record, indent=1, allow_nan=False) + "\n"


def state_record(state: AccountState) -> dict[str, Any]:
    """An account for machines, plain finite values."""
    budget = state.budget
    is_known = math.isfinite(state.spent.value)
    return {
        "dataset": state.dataset,
        "period": state.period,
        "partition": state.partition or None,
        "begins": budget.begins,
        "ends": budget.ends,
        "budget": {
            "epsilon": budget.epsilon,
            "delta": budget.delta,
            "rho": budget.rho,
        },
        "spent": state.spent.value if is_known else None,
        "part": state.spent.part if is_known else None,
        "method": state.spent.method,
        "runs": state.runs,
        "risk": state.risk,
    }
