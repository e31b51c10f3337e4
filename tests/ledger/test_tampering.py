"""A row that was changed, removed, added or moved; a database that was replaced."""

import shutil
import sqlite3

import pytest

import tf_bandmf
from tf_bandmf.ledger import DamagedLedgerError, LedgerError, schema, witness


@pytest.fixture
def filled(ledger, make_plan, run_name):
    """A ledger with two runs, and the means to change what it holds."""
    ledger.add_dataset("patients", epsilon=4.0, delta=1e-6)
    plan = make_plan(ledger=ledger, dataset="patients")
    for number in range(2):
        ledger.begin(plan, run_name(number))
        ledger.note_steps(run_name(number), 10)
    return ledger


def change(ledger, *statements, guarded=False):
    """As whoever has the database's password."""
    store = ledger._store
    with store._transaction(writes=True) as connection:
        if not guarded:
            names = [
                (f"no_{what}_of_{table}", table)
                for what in ("update", "delete")
                for table in ("entries", "touched", "plans")
            ]
            for name, table in names:
                on = "" if store.is_sqlite else f" ON {table}"
                connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {name}{on}")
        for statement in statements:
            connection.exec_driver_sql(statement)


ATTACKS = {
    "changed": "UPDATE entries SET text = replace(text, '1.0', '0.1') WHERE number = 4",
    "who": "UPDATE entries SET who = 'somebody else' WHERE number = 4",
    "deleted": "DELETE FROM entries WHERE number = 4",
    "truncated": "DELETE FROM entries WHERE number = 7",
    "reordered": "UPDATE entries SET number = CASE number WHEN 4 THEN 100 ELSE 4 END "
    "WHERE number IN (4, 5); UPDATE entries SET number = 5 WHERE number = 100",
    "added": "INSERT INTO entries SELECT 8, at, who, kind, dataset, run, text, digest, "
    "'0123' FROM entries WHERE number = 7",
    "index": "DELETE FROM touched WHERE number = 6",
    "plan": "DELETE FROM plans",
    "head": "UPDATE head SET number = 6",
}


@pytest.mark.slow_cases("postgresql-head")
@pytest.mark.attack(
    "Rows of the ledger changed, deleted, added, reordered, cut off",
    tried="By whoever may write to the database and knows SQL, SQLite and PostgreSQL: "
    "verification names the entry, and nothing is reserved from a changed balance.",
    area="faults",
    invariants=[19],
)
@pytest.mark.parametrize("attack", ATTACKS)
def test_what_was_changed_is_seen(attack, filled):
    assert filled.verify().is_intact
    with pytest.raises(LedgerError, match="only grows"):
        change(filled, "UPDATE entries SET who = 'x' WHERE number = 4", guarded=True)
    with pytest.raises(LedgerError, match="only grows"):
        change(filled, "DELETE FROM entries WHERE number = 4", guarded=True)
    assert filled.verify().is_intact
    change(filled, *ATTACKS[attack].split("; "))
    found = filled.verify()
    assert not found.is_intact
    assert "changed or damaged" in str(found)


def test_a_changed_balance_is_not_spent_from(filled, make_plan):
    change(
        filled, "UPDATE entries SET text = replace(text, '\"runs\":2', '\"runs\":1')"
    )
    with pytest.raises(DamagedLedgerError, match="changed or removed"):
        make_plan(ledger=filled, dataset="patients", epsilon=0.1)
    change(filled, "DELETE FROM entries WHERE number = 7")
    with pytest.raises(DamagedLedgerError, match="this machine saw"):
        filled.add_dataset("others")


def rewrite(path, keep):
    """A chain without a fault, by somebody who knows how it is made."""
    from tf_bandmf.ledger.chain import BEFORE_FIRST, Entry

    with sqlite3.connect(path) as database:
        for name in ("entries", "touched", "plans"):
            for what in ("update", "delete"):
                database.execute(f"DROP TRIGGER no_{what}_of_{name}")
        names = [column.name for column in schema.entries.c]
        rows = database.execute(
            f"SELECT {', '.join(names)} FROM entries ORDER BY number"
        ).fetchall()
        database.execute("DELETE FROM entries")
        database.execute("DELETE FROM touched WHERE number >= ?", (keep,))
        previous = BEFORE_FIRST
        for row in rows[:keep]:
            values = {**dict(zip(names, row)), "who": "nobody", "previous": previous}
            entry = Entry(**{**values, "digest": ""}).sealed()
            database.execute(
                f"INSERT INTO entries VALUES ({', '.join('?' * len(names))})",
                [getattr(entry, name) for name in names],
            )
            previous = entry.digest
        database.execute("UPDATE head SET number = ?, digest = ?", (keep - 1, previous))


@pytest.mark.attack(
    "A ledger that was restored, copied, rewritten or made anew",
    tried="A chain without a fault that has forgotten a run: an older copy, all rows with "
    "new digests, an empty database in its place. The machine remembers the newest entry.",
    area="faults",
    invariants=[19],
)
@pytest.mark.parametrize("how", ["older", "rewritten", "anew"])
def test_a_database_that_forgot_is_refused(
    how, url, tmp_path, make_plan, run_name, monkeypatch
):
    path = tmp_path / "privacy.db"
    ledger = tf_bandmf.Ledger(url)
    ledger.add_dataset("patients", epsilon=1.2, delta=1e-6)
    plan = make_plan(ledger=ledger, dataset="patients")
    shutil.copy(path, tmp_path / "backup.db")
    cited = ledger.begin(plan, run_name(1)).name
    if how == "older":
        shutil.copy(tmp_path / "backup.db", path)
    elif how == "rewritten":
        rewrite(path, keep=4)
    else:
        path.unlink()
    if how != "anew":
        with pytest.raises(DamagedLedgerError, match="which this machine saw"):
            ledger.begin(plan, run_name(2))
        assert "replaced by an older one" in str(ledger.verify())
    with pytest.raises(DamagedLedgerError, match="trust=True"):
        tf_bandmf.Ledger(url)
    # On a machine that has seen nothing: what a statement cites is missing.
    monkeypatch.setenv(witness.VARIABLE, "off")
    fresh = tf_bandmf.Ledger(url)
    assert fresh.verify().is_intact
    assert f"no entry {cited}" in str(fresh.verify(cited))
    monkeypatch.setenv(witness.VARIABLE, str(tmp_path / "witness"))
    trusted = tf_bandmf.Ledger(url, trust=True)
    assert [entry.kind for entry in trusted.history()].count("trusted") == 1
    tf_bandmf.Ledger(url)


def test_tables_of_a_later_version_are_refused_and_older_ones_migrated(
    ledger, monkeypatch
):
    url = ledger._store.url.render_as_string(False)

    def second(connection):
        connection.exec_driver_sql("CREATE TABLE notes (text TEXT)")

    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, second))
    with pytest.raises(LedgerError, match="makes or migrates"):
        tf_bandmf.Ledger(url, create=False)
    newer = tf_bandmf.Ledger(url)
    assert newer.verify().is_intact
    with newer._store._transaction(writes=False) as connection:
        assert schema.version_of(connection) == 2
    monkeypatch.undo()
    monkeypatch.setenv(witness.VARIABLE, "off")
    with pytest.raises(LedgerError, match="newer"):
        tf_bandmf.Ledger(url)
