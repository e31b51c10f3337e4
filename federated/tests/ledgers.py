"""Ledgers as they were earlier, for tests."""

import contextlib
import os
import sqlite3


def copy_ledger(source, target):
    """A copy with what a killed program left in the journal."""
    os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
    os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o600))
    with contextlib.ExitStack() as stack:
        whole, copied = (
            stack.enter_context(contextlib.closing(sqlite3.connect(path)))
            for path in (source, target)
        )
        whole.backup(copied)


def changed(path, *statements):
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.executescript(statement)


def begin_round(ledger, number, cohort):
    """A round that begins; the one before, or the first state, is done."""
    if ledger.expected[0] == "finished":
        ledger.finished(number - 1, {"a": number})
        ledger.released(number - 1)
    ledger.started(number, cohort)
