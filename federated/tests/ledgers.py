"""Helpers for ledger tests: they copy and change ledgers, and begin rounds."""

import contextlib
import os
import sqlite3

from tf_bandmf_federated import Ledger

RUN = {"plan": "p", "num_parameters": 4}
COHORT = ("a", "b")


def rounds_of(path):
    with Ledger(path, RUN) as ledger:
        return ledger.rounds


def copy_ledger(source, target):
    """Copies a ledger, including the contents of a journal that a kill left behind."""
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
    """Begins a round, after completing the round before it or the initial state."""
    if ledger.expected[0] == "finished":
        ledger.finished(number - 1, {"a": number})
        ledger.released(number - 1)
    ledger.started(number, cohort)
