"""Ledgers detect changed, removed, added and moved rows, and replaced databases."""

import shutil
import sqlite3

import pytest
from small_ledgers import bound_plan, run_name

import tf_bandmf
from tf_bandmf.ledger import DamagedLedgerError, LedgerError


@pytest.fixture
def filled(ledger):
    """Fills a ledger: entry 0 adds a data set, 1 and 3 begin runs, 2 and 4 record steps."""
    ledger.add_dataset("patients", epsilon=4.0, delta=1e-6)
    plan = bound_plan(ledger)
    for number in range(2):
        ledger.begin(plan, run_name(number))
        ledger.note_steps(run_name(number), 10)
    return ledger


def change(ledger, *statements, guarded=False):
    """Executes SQL statements on the database, like a person who has its password.

    Unless `guarded` is true, first drops the triggers that forbid changes of entries.
    """
    with ledger._store.transaction(writes=True) as actual:
        if not guarded:
            on = "" if actual.connection.dialect.name == "sqlite" else " ON runs"
            for what in ("update", "delete"):
                actual.connection.exec_driver_sql(f"DROP TRIGGER no_{what}_of_runs{on}")
        for statement in statements:
            actual.connection.exec_driver_sql(statement)


ATTACKS = {
    "changed": "UPDATE runs SET text = replace(text, '1.0', '0.1') WHERE number = 3",
    "who": "UPDATE runs SET who = 'somebody else' WHERE number = 3",
    "deleted": "DELETE FROM runs WHERE number = 3",
    "truncated": "DELETE FROM runs WHERE number = 4",
    "reordered": "UPDATE runs SET number = CASE number WHEN 2 THEN 100 ELSE 2 END "
    "WHERE number IN (2, 3); UPDATE runs SET number = 3 WHERE number = 100",
    "added": "INSERT INTO runs (dataset, number, at, who, kind, run, text, previous, "
    "digest) SELECT dataset, 5, at, who, kind, run, text, digest, '0123' FROM runs "
    "WHERE number = 4",
    "head": "UPDATE datasets SET number = 3",
}


@pytest.mark.slow_cases("postgresql-head")
@pytest.mark.attack(
    "Rows of the ledger that are changed, deleted, added, reordered or truncated",
    tried="Writes to the database with SQL, on SQLite and on PostgreSQL: verification "
    "names the changed entry, and a process that reads the entry reserves nothing.",
    area="faults",
)
@pytest.mark.invariant(19)
@pytest.mark.parametrize("attack", ATTACKS)
def test_what_was_changed_is_seen(attack, filled):
    assert filled.verify() == []
    with pytest.raises(LedgerError, match="entries are permanent"):
        change(filled, "UPDATE runs SET who = 'x' WHERE number = 3", guarded=True)
    with pytest.raises(LedgerError, match="entries are permanent"):
        change(filled, "DELETE FROM runs WHERE number = 3", guarded=True)
    assert filled.verify() == []
    change(filled, *ATTACKS[attack].split("; "))
    assert len(filled.verify()) == 1
    fresh = tf_bandmf.Ledger(filled._store.url.render_as_string(False))
    # An added row is not read, because it follows the newest entry of the data set.
    if attack != "added":
        with pytest.raises(DamagedLedgerError):
            bound_plan(fresh, epsilon=0.1)
    with pytest.raises(LedgerError):
        fresh.spend("patients", (0.1, 0.0), about="a count")


@pytest.mark.attack(
    "A ledger that was restored from a backup, or created again",
    tried="The hash chain is valid, but lacks a run. A process that knows the run "
    "reserves nothing; verification reports that the entry of the run's statement is "
    "missing; the run reserves its budget again when it is resumed.",
    area="faults",
)
@pytest.mark.invariant(19)
@pytest.mark.parametrize("how", ["older", "anew"])
def test_a_database_that_forgot(how, url, tmp_path):
    path = tmp_path / "privacy.db"
    ledger = tf_bandmf.Ledger(url)
    ledger.add_dataset("patients", epsilon=1.2, delta=1e-6)
    plan = bound_plan(ledger)
    shutil.copy(path, tmp_path / "backup.db")
    cited = ledger.begin(plan, run_name(1)).name
    path.unlink()
    if how == "anew":
        with pytest.raises(LedgerError, match="There is no ledger"):
            ledger.begin(plan, run_name(2))
        fresh = tf_bandmf.Ledger(url)
        fresh.add_dataset("patients", epsilon=1.2, delta=1e-6)
        with pytest.raises(LedgerError, match="not bound to this ledger"):
            fresh.begin(plan, run_name(1))
        return
    shutil.copy(tmp_path / "backup.db", path)
    with pytest.raises(DamagedLedgerError, match="missing"):
        ledger.begin(plan, run_name(2))
    fresh = tf_bandmf.Ledger(url)
    assert fresh.verify() == []
    assert fresh.verify(cited) == [f"There is no entry {cited}."]
    fresh.begin(plan, run_name(1))
    with pytest.raises(LedgerError, match="exceed"):
        fresh.begin(plan, run_name(2))


def test_a_database_of_something_else_is_refused(url, tmp_path):
    with sqlite3.connect(tmp_path / "privacy.db") as database:
        database.execute("CREATE TABLE entries (number INTEGER)")
    with pytest.raises(LedgerError, match="contains no ledger"):
        tf_bandmf.Ledger(url)
