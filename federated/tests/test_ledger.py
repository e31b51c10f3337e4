"""The write-ahead record: what it takes, refuses and reads again."""

import contextlib
import dataclasses
import os
import shutil
import sqlite3
import subprocess
import sys

import pytest
from killing import fork

from tf_bandmf_federated import Ledger, RoundRecord

RUN = {"plan": "p", "num_parameters": 4}
KNOWN = dict(key_id=9, cohort_digest="c", state_digest="s")
START = dict(KNOWN, cohort=("a", "b"))


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "ledger.sqlite3")


def rounds_of(path):
    with Ledger(path, RUN) as ledger:
        return ledger.rounds


def test_every_entry_is_read_again(path):
    with Ledger(path, RUN) as ledger:
        ledger.started(0, **START)
        ledger.result(0, "r")
        ledger.releasing(0, "m")
        ledger.released(0)
        ledger.started(1, **START)
        ledger.started(1, **START)
        ledger.skipped(1, "another cohort")
        ledger.releasing(1, "m")
        ledger.started(2, **START)
        written = ledger.rounds
    assert rounds_of(path) == written
    drawn = [record.drawn for record in written.values()]
    assert len(set(drawn)) == 3 and all(len(number) == 32 for number in drawn)
    written = {t: dataclasses.replace(r, drawn="") for t, r in written.items()}
    assert written == {
        0: RoundRecord(
            0, **KNOWN, result_digest="r", release_digest="m", is_released=True
        ),
        1: RoundRecord(
            1,
            **KNOWN,
            release_digest="m",
            skipped_because="another cohort",
            starts=2,
        ),
        2: RoundRecord(2, **KNOWN),
    }
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_the_first_state_is_known_and_fixed_when_a_round_begins(path):
    with Ledger(path, RUN) as ledger:
        assert ledger.initial_digest is None
        ledger.initial("of a state that was never saved")
        ledger.initial("s")
        ledger.started(0, **START)
        with pytest.raises(ValueError, match="has its first state"):
            ledger.initial("another")
    with Ledger(path, RUN) as ledger:
        assert ledger.initial_digest == "s"


def test_an_entry_is_in_the_file_when_the_call_returns(path, tmp_path):
    acts = (
        lambda ledger: ledger.started(0, **START),
        lambda ledger: ledger.result(0, "r"),
        lambda ledger: ledger.released(0),
    )
    with Ledger(path, RUN) as ledger:
        for number, act in enumerate(acts):
            act(ledger)
            # What a kill would leave: the file and its journal.
            copied = tmp_path / f"{number}"
            for name in ("", "-wal"):
                shutil.copy2(path + name, f"{copied}{name}")
            assert rounds_of(str(copied)) == ledger.rounds


def test_cohorts_and_records_are_read_again(path):
    with Ledger(path, RUN) as ledger:
        ledger.started(0, **START)
        ledger.started(1, **{**START, "cohort": ("c", "b")})
    with Ledger(path, RUN) as ledger:
        assert ledger.cohort(0) == ("a", "b") and ledger.cohort(1) == ("c", "b")
        found = ledger.records(["b", "new", "a"], 2).tolist()
        assert found == [[1, 2], [-1, 0], [0, 1]]
        assert ledger.records(["b"], 1).tolist() == [[0, 1]]  # as it was before round 1
        measured = ledger.measured(2)
        assert (measured.num_clients, measured.min_separation) == (3, 1)
        with pytest.raises(ValueError, match="twice"):
            ledger.started(2, **{**START, "cohort": ("a", "a")})
        with pytest.raises(ValueError, match="zero character"):
            ledger.started(2, **{**START, "cohort": ("a\0b",)})
        ledger.started(
            2, **{**START, "cohort": ('"\u20ac\u4e2d', "'; DROP TABLE entries")}
        )
    with Ledger(path, RUN) as ledger:
        assert ledger.records(['"\u20ac\u4e2d'], 3).tolist() == [[2, 1]]


@pytest.mark.parametrize(
    "change", [dict(key_id=8), dict(cohort_digest="d"), dict(state_digest="t")]
)
def test_a_round_begun_for_others_is_refused_and_not_written(path, change):
    with Ledger(path, RUN) as ledger:
        ledger.started(0, **START)
        with pytest.raises(ValueError, match="must not be run for this one"):
            ledger.started(0, **{**START, **change})
    (record,) = rounds_of(path).values()
    assert dataclasses.replace(record, drawn="") == RoundRecord(0, **KNOWN)


def test_another_result_of_a_round_is_refused(path):
    with Ledger(path, RUN) as ledger:
        ledger.started(0, **START)
        ledger.result(0, "r")
        ledger.result(0, "r")
        with pytest.raises(ValueError, match="another result"):
            ledger.result(0, "other")


def test_another_model_after_a_round_is_refused(path):
    with Ledger(path, RUN) as ledger:
        ledger.started(0, **START)
        with pytest.raises(ValueError, match="no result to release"):
            ledger.releasing(0, "m")
        ledger.result(0, "r")
        for _ in range(2):
            ledger.releasing(0, "m")
        ledger.skipped(0, "lost")
        with pytest.raises(ValueError, match="Another model was released"):
            ledger.releasing(0, "other")
        ledger.released(0)
    assert rounds_of(path)[0].is_released


def test_entries_in_a_wrong_order_are_refused(path):
    with Ledger(path, RUN) as ledger:
        for act in (ledger.released, lambda t: ledger.result(t, "r")):
            with pytest.raises(ValueError, match="not begun"):
                act(0)
        with pytest.raises(ValueError, match="not begun"):
            ledger.skipped(0, "reason")
        with pytest.raises(ValueError, match="Round 0 is the next"):
            ledger.started(1, **START)
        ledger.started(0, **START)
        with pytest.raises(ValueError, match="no result"):
            ledger.released(0)
        ledger.skipped(0, "reason")
        with pytest.raises(ValueError, match="skipped"):
            ledger.started(0, **START)
        with pytest.raises(ValueError, match="skipped"):
            ledger.result(0, "r")


def changed(path, *statements):
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)


DAMAGES = {
    "an entry's text": "UPDATE entries SET entry = replace(entry, '\"r\"', '\"q\"')",
    "a cohort": "UPDATE entries SET names = '[\"z\"]' WHERE number = 2",
    "a removed entry": "DELETE FROM entries WHERE number = 3",
    "no JSON": "UPDATE entries SET entry = 'no JSON' WHERE number = 3",
    "a removed participation": "DELETE FROM participations WHERE device = 'a'",
    "an earlier participation": "UPDATE participations SET round = 5",
    "another device's": "UPDATE participations SET device = 'x' WHERE device = 'a'",
    "one more": "INSERT INTO participations VALUES ('z', 0)",
    "a missing table": "DROP TABLE participations",
}


@pytest.mark.attack(
    "Rows of the ledger are changed",
    tried="Changes, removes, moves and adds rows of entries and participations, and opens "
    "the ledger again.",
    area="faults",
    invariants=[11],
)
def test_a_changed_removed_or_added_row_is_seen(path, tmp_path, figure):
    with Ledger(path, RUN) as ledger:
        ledger.started(0, **START)
        ledger.result(0, "r")
        ledger.released(0)
    for number, statement in enumerate(DAMAGES.values()):
        copied = shutil.copy2(path, tmp_path / f"{number}")
        changed(copied, statement)
        with pytest.raises(ValueError, match="damaged or was changed"):
            Ledger(str(copied), RUN)
    moved = shutil.copy2(path, tmp_path / "moved")
    changed(
        moved,
        "UPDATE entries SET number = 9 WHERE number = 2",
        "UPDATE entries SET number = 2 WHERE number = 3",
        "UPDATE entries SET number = 3 WHERE number = 9",
    )
    with pytest.raises(ValueError, match="damaged or was changed"):
        Ledger(str(moved), RUN)
    rounds_of(path)  # the control: what was not changed is read
    figure(f"{len(DAMAGES) + 1} changes, each refused")


def test_a_file_that_is_no_ledger_is_refused(path):
    with open(path, "wb") as file:
        file.write(b"no database" * 1000)
    os.chmod(path, 0o600)
    with pytest.raises(ValueError, match="damaged or was changed"):
        Ledger(path, RUN)


def test_a_fork_does_not_write(path):
    with Ledger(path, RUN) as ledger:
        ledger.started(0, **START)
        child = fork()
        if child == 0:
            try:
                ledger.result(0, "r")
            except ValueError as error:
                ledger.close()
                os._exit(7 if "fork" in str(error) else 1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        with pytest.raises(BlockingIOError):  # the child has not freed the lock
            Ledger(path, RUN)
        ledger.result(0, "r")
    assert rounds_of(path)[0].result_digest == "r"


def test_another_run_a_second_program_and_open_files_are_refused(path):
    with Ledger(path, RUN):
        with pytest.raises(BlockingIOError, match="Another program"):
            Ledger(path, RUN)
    with pytest.raises(ValueError, match="another run: plan was 'p' and is 'q'"):
        Ledger(path, {**RUN, "plan": "q"})
    os.chmod(path, 0o644)
    with pytest.raises(PermissionError, match="chmod 600"):
        Ledger(path, RUN)


def test_another_process_neither_reads_nor_writes_an_open_file(path):
    program = (
        "import sqlite3, sys\n"
        "try: sqlite3.connect(sys.argv[1], timeout=0).execute(sys.argv[2])\n"
        "except sqlite3.OperationalError as error: print(error)"
    )

    def found(statement):
        command = [sys.executable, "-c", program, path, statement]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()

    statements = ("SELECT * FROM entries", "DELETE FROM entries")
    for _ in range(2):  # a new file, and one that is only read
        with Ledger(path, RUN):
            with pytest.raises(BlockingIOError):
                Ledger(path, RUN)  # which does not end the lock of the first
            assert [found(one) for one in statements] == 2 * ["database is locked"]
    assert found(statements[0]) == ""  # the control


def connecting(statement):
    """`sqlite3.connect` that runs a statement on each new connection."""
    real = sqlite3.connect

    def connect(*arguments, **options):
        database = real(*arguments, **options)
        database.execute(statement)
        return database

    return connect


def test_a_file_that_another_program_has_locked_is_not_called_damaged(
    path, monkeypatch
):
    rounds_of(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    monkeypatch.setattr(sqlite3, "connect", connecting("PRAGMA busy_timeout = 10"))
    with pytest.raises(BlockingIOError, match="Another program"):
        Ledger(path, RUN)
    other.execute("ROLLBACK")
    other.close()
    assert rounds_of(path) == {}


@pytest.mark.parametrize(
    "statement, match",
    [("PRAGMA max_page_count = 1", "full"), ("PRAGMA query_only = 1", "readonly")],
)
def test_a_round_that_cannot_be_written_is_not_begun(
    statement, match, path, monkeypatch
):
    with Ledger(path, RUN) as ledger:
        ledger.started(0, **START)
        ledger.result(0, "r")
    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", connecting(statement))
        with Ledger(path, RUN) as ledger:
            many = {**START, "cohort": tuple(f"device {i}" for i in range(2000))}
            with pytest.raises(OSError, match=match):
                ledger.started(1, **many)
            # It may not know what is on the disk: nothing more is written by it.
            with pytest.raises(ValueError, match="is closed"):
                ledger.started(1, **START)
    with Ledger(path, RUN) as ledger:
        assert list(ledger.rounds) == [0]
        assert ledger.records(["device 7"], 2).tolist() == [[-1, 0]]
        ledger.started(1, **START)
    assert [record.starts for record in rounds_of(path).values()] == [1, 1]


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE participations RENAME TO old;"
        "CREATE TABLE participations (device TEXT, round INTEGER);"
        "INSERT INTO participations VALUES ('a', 0), ('a', 0); DROP TABLE old;",
        "CREATE TRIGGER forget AFTER INSERT ON participations"
        " BEGIN DELETE FROM participations WHERE device = new.device; END;",
    ],
    ids=["a device twice", "a trigger that deletes"],
)
def test_tables_that_were_made_otherwise_are_damage(path, change):
    with Ledger(path, RUN) as ledger:
        ledger.started(0, **START)
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.executescript(change)
    with pytest.raises(ValueError, match="Its tables"):
        Ledger(path, RUN)


def test_names_that_are_no_list_are_damage_and_not_a_full_disk(path):
    rounds_of(path)
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE entries SET names = ''")  # of the same digest
        database.commit()
    with pytest.raises(ValueError, match="damaged"):
        Ledger(path, RUN)
