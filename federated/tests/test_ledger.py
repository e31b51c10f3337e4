"""The write-ahead ledger accepts, refuses and restores the right entries."""

import collections
import os
import shutil
import sqlite3
import subprocess
import sys

import numpy as np
import pytest
from children import fork
from ledgers import COHORT, RUN, changed, rounds_of

from tf_bandmf_federated import Ledger


def state(value):
    return collections.OrderedDict(
        round=np.int64(value), weights=[np.full([2, 3], value, np.float32)]
    )


def begin(ledger):
    ledger.finished(-1, state(0))
    ledger.released(-1)


def run_round(ledger, number, cohort=COHORT):
    ledger.started(number, cohort)
    ledger.finished(number, state(number + 1))
    ledger.released(number)


def test_every_entry_is_read_again_and_in_the_file_when_the_call_returns(
    path, tmp_path
):
    acts = (
        lambda ledger: ledger.finished(-1, state(0)),
        lambda ledger: ledger.released(-1),
        lambda ledger: ledger.started(0, COHORT),
        lambda ledger: ledger.finished(0, state(1)),
        lambda ledger: ledger.released(0),
        lambda ledger: ledger.started(1, ("c", "b")),
        lambda ledger: ledger.finished(1, state(2), "other data"),
        lambda ledger: ledger.released(1),
        lambda ledger: ledger.started(2, COHORT),
    )
    with Ledger(path, RUN) as ledger:
        for number, act in enumerate(acts):
            act(ledger)
            # These copies are in the state that a killed program would leave behind.
            copied = str(tmp_path / f"{number}")
            for name in ("", "-wal"):
                shutil.copy2(path + name, copied + name)
            with Ledger(copied, RUN) as again:
                assert again.rounds == ledger.rounds
                assert again.expected == ledger.expected
                newest = 0 if number < 3 else 1 if number < 6 else 2
                assert again.state(state(0))["round"] == newest
                assert again.seal("text") == ledger.seal("text")
        first, skipped, begun = ledger.rounds
        assert ledger.interrupted == begun
    assert [r.skipped_because for r in (first, skipped, begun)] == [
        None,
        "other data",
        None,
    ]
    assert len({r.point for r in (first, skipped, begun)}) == 3
    assert os.stat(path).st_mode & 0o777 == 0o600


@pytest.mark.invariant(8)
def test_a_round_that_is_begun_again_elsewhere_has_another_point(path, tmp_path):
    with Ledger(path, RUN) as ledger:
        begin(ledger)
    copied = str(tmp_path / "copied")
    shutil.copy2(path, copied)
    points = set()
    for one in (path, copied):
        with Ledger(one, RUN) as ledger:
            points.add(ledger.started(0, COHORT).point)
    assert len(points) == 2
    other = str(tmp_path / "other")
    with Ledger(path, RUN) as ledger, Ledger(other, RUN) as another:
        assert ledger.seal("text") != another.seal("text")


def test_cohorts_and_history_are_read_again(path):
    strange = ('"\u20ac\u4e2d', "'; DROP TABLE entries", "b", "a\0b")
    with Ledger(path, RUN) as ledger:
        begin(ledger)
        run_round(ledger, 0)
        with pytest.raises(ValueError, match="twice"):
            ledger.started(1, ("a", "a"))
        with pytest.raises(TypeError, match="must be strings"):
            ledger.started(1, (1, 2))
        run_round(ledger, 1, strange)
    with Ledger(path, RUN) as ledger:
        assert [ledger.cohort(i) for i in (0, 1)] == [COHORT, tuple(sorted(strange))]
        actual = ledger.history(["b", "new", strange[0], "a\0b"], 2).tolist()
        assert actual == [[1, 2], [-1, 0], [1, 1], [1, 1]]
        # Only participations before round 1 are counted.
        assert ledger.history(["b"], 1).tolist() == [[0, 1]]
        assert ledger.point_with("a", 0) == ledger.rounds[0].point
        assert ledger.point_with("a", 1) is None


def test_entries_in_a_wrong_order_are_refused_and_not_written(path):
    acts = {
        "finished": lambda ledger, t: ledger.finished(t, state(t)),
        "released": lambda ledger, t: ledger.released(t),
        "started": lambda ledger, t: ledger.started(t, COHORT),
    }
    with Ledger(path, RUN) as ledger:
        # The initial state has two entries, and each of two rounds has three.
        for _ in range(8):
            kind, number = ledger.expected
            before = ledger.rounds
            for wrong in [(k, t) for k in acts for t in (-1, 0, 1, 2)]:
                if wrong != (kind, number):
                    with pytest.raises(ValueError, match="ledger's next entry must be"):
                        acts[wrong[0]](ledger, wrong[1])
            assert ledger.rounds == before
            acts[kind](ledger, number)
    assert len(rounds_of(path)) == 2


DAMAGES = {
    "an entry's text": "UPDATE entries SET entry = replace(entry, '1', '2')",
    "a removed entry": "DELETE FROM entries WHERE number = 3",
    "no JSON": "UPDATE entries SET entry = 'no JSON' WHERE number = 3",
    "a removed participation": "DELETE FROM participations WHERE device = 'a'",
    "an earlier participation": "UPDATE participations SET round = 5",
    "another device's": "UPDATE participations SET device = 'x' WHERE device = 'a'",
    "one more": "INSERT INTO participations VALUES ('z', 0)",
    "a missing table": "DROP TABLE participations",
    "moved entries": "UPDATE entries SET number = 9 WHERE number = 2;"
    "UPDATE entries SET number = 2 WHERE number = 3;"
    "UPDATE entries SET number = 3 WHERE number = 9",
    "one more of a later round": "INSERT INTO participations VALUES ('z', 7)",
    "a device twice": "ALTER TABLE participations RENAME TO old;"
    "CREATE TABLE participations (device TEXT, round INTEGER);"
    "INSERT INTO participations VALUES ('a', 0), ('a', 0); DROP TABLE old",
    "a trigger that deletes": "CREATE TRIGGER forget AFTER INSERT ON participations"
    " BEGIN DELETE FROM participations WHERE device = new.device; END",
    "another number of the state": "UPDATE states SET content = x'0700000000000000'"
    " WHERE name LIKE '%round'",
    "a removed array of the state": "DELETE FROM states WHERE name LIKE '%round'",
}


@pytest.mark.attack(
    "Rows of the ledger are changed",
    tried="Changes, removes, moves or adds rows of entries, participations or states, "
    "or adds a trigger: the ledger is refused when it is opened again.",
    area="faults",
)
@pytest.mark.invariant(11)
def test_a_changed_removed_or_added_row_is_seen(path, tmp_path, figure):
    with Ledger(path, RUN) as ledger:
        begin(ledger)
        run_round(ledger, 0)
    for number, statement in enumerate(DAMAGES.values()):
        copied = str(shutil.copy2(path, tmp_path / f"{number}"))
        changed(copied, statement)
        with pytest.raises(ValueError, match="damaged or was changed"):
            with Ledger(copied, RUN) as ledger:
                ledger.state(state(0))
    # As a control, read the unchanged ledger.
    with Ledger(path, RUN) as ledger:
        assert ledger.state(state(0))["round"] == 1
    figure(f"{len(DAMAGES)} changes, each refused")


def test_a_file_that_is_no_ledger_is_refused(path):
    with open(path, "wb") as file:
        file.write(b"no database" * 1000)
    os.chmod(path, 0o600)
    with pytest.raises(ValueError, match="damaged or was changed"):
        Ledger(path, RUN)


def test_a_fork_does_not_write(path):
    with Ledger(path, RUN) as ledger:
        begin(ledger)
        child = fork()
        if child == 0:
            try:
                ledger.started(0, COHORT)
            except ValueError as error:
                ledger.close()
                os._exit(7 if "fork" in str(error) else 1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        # The child process has not released the lock of its parent.
        with pytest.raises(BlockingIOError):
            Ledger(path, RUN)
        ledger.started(0, COHORT)
    assert len(rounds_of(path)) == 1


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

    def actual(statement):
        command = [sys.executable, "-c", program, path, statement]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()

    statements = ("SELECT * FROM entries", "DELETE FROM entries")
    # The first pass creates the ledger, and the second pass opens it again.
    for _ in range(2):
        with Ledger(path, RUN):
            # This attempt must not release the lock of the first ledger object.
            with pytest.raises(BlockingIOError):
                Ledger(path, RUN)
            assert [actual(one) for one in statements] == 2 * ["database is locked"]
    # As a control, the other process can read the closed ledger.
    assert actual(statements[0]) == ""


def connecting(statement):
    """Returns a `sqlite3.connect` that runs a statement on each new connection."""
    real = sqlite3.connect

    def connect(*arguments, **options):
        database = real(*arguments, **options)
        database.execute(statement)
        return database

    return connect


@pytest.mark.parametrize(
    "statement, match",
    [("PRAGMA max_page_count = 1", "full"), ("PRAGMA query_only = 1", "readonly")],
)
def test_a_round_that_cannot_be_written_is_not_begun(
    statement, match, path, monkeypatch
):
    with Ledger(path, RUN) as ledger:
        begin(ledger)
        run_round(ledger, 0)
    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", connecting(statement))
        with Ledger(path, RUN) as ledger:
            with pytest.raises(OSError, match=match):
                ledger.started(1, [f"device {i}" for i in range(2000)])
            # The state in memory may now differ from the disk, so the ledger must not
            # write any more.
            with pytest.raises(ValueError, match="is closed"):
                ledger.started(1, COHORT)
    with Ledger(path, RUN) as ledger:
        assert len(ledger.rounds) == 1
        assert ledger.history(["device 7"], 2).tolist() == [[-1, 0]]
        ledger.started(1, COHORT)


def test_states_of_every_layout_come_back_and_other_structures_are_refused(path):
    rng = np.random.default_rng(0)
    saved = {
        "columns first": np.asfortranarray(rng.normal(size=[3, 4])),
        "every second": rng.integers(9, size=[4, 6])[:, ::2],
        "flag": np.array([True, False]),
        "is done": False,
        "keys": np.array([2**63 + 1], np.uint64),
        # This array is stored in two rows.
        "large": rng.normal(size=[2100, 2000]).astype(np.float32),
        "none": np.zeros([0, 2], np.float32),
        "round": 7,
        "scalar": np.float32(0.5),
    }
    with Ledger(path, RUN) as ledger:
        ledger.finished(-1, saved)
        actual = ledger.state({**saved, "round": 0})
        for name, value in saved.items():
            assert np.asarray(actual[name]).dtype == np.asarray(value).dtype
            np.testing.assert_array_equal(actual[name], value)
        for wrong in (np.zeros([1], np.float64), np.zeros([1, 1], np.uint64)):
            with pytest.raises(ValueError, match="another model or optimizer"):
                ledger.state({**saved, "keys": wrong})
        with pytest.raises(ValueError, match="optimizer: its arrays"):
            ledger.state({"else": 0})
        ledger.released(-1)
        ledger.started(0, COHORT)
        with pytest.raises(TypeError, match="arrays and numbers"):
            ledger.finished(0, {"a": object()})
