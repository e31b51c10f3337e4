"""The write-ahead log of a run: the rounds that have begun, and the newest state.

If a round ran twice, with two cohorts or two models, the run would spend more than the
plan permits. Therefore the ledger records each round's cohort before any device is
contacted, and records the new state before anything is released. After a crash, the
program repeats the interrupted round with the same cohort. This is safe even if the sum
of the updates differs the second time, because no result of the round was released, and
the noise is bound to the sum.

The file is an SQLite database. Its journal ensures that an entry is written completely
or not at all, and is on disk before the call returns. It has three tables:

`entries`: one row per entry. Each row includes one SHA-256, computed from three things:
the entry's content, the round's cohort and the SHA-256 of the previous entry. The order
of entries is fixed: `run`; then `finished` and `released` for the initial state, as
round -1; then `started`, `finished` and `released` for each round.

| entry | fields |
|---|---|
| `run` | the plan's fingerprint, the settings of the run, and a secret key |
| `started` | round, a random number, the measured participation |
| `finished` | round, digest of the new state, reason for a skip (null if not skipped) |
| `released` | round |

`participations`: device and round of each participation. This table determines the
  cohort of each round, and which devices may take part in later rounds.
`states`: the arrays of the newest state. Each `finished` entry replaces them.

A skipped round has no result, so the model stays unchanged. The file contains device
names and, in the state, the noise key, so only the owner may read it (mode 0600).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tf_bandmf.files import private as private_files
from tf_bandmf.noise import digests
from tf_bandmf_federated.accounting import NOTHING, MeasuredParticipation
from tf_bandmf_federated.ledger_lock import LedgerLock
from tf_bandmf_federated.state_rows import digest_of_rows, rows_of, state_of

# The format includes the version of the digests, because a repeated round must produce
# the same digests.
_FORMAT = f"tf-bandmf-federated ledger 10, digests {digests.VERSION}"
_BEFORE_FIRST = "0" * 64
_AFTER = {
    "run": "finished",
    "started": "finished",
    "finished": "released",
    "released": "started",
}
# Entries before round 0 have this round number.
_NO_ROUND = -1
# SQLite waits this many seconds for another connection to be closed.
_WAIT = 1.0
# With these settings, SQLite writes a transaction to disk before the transaction ends.
# From its first access until it is closed, the connection locks the file, even against
# other connections of this process, so the journal needs no shared memory. `ledger_lock`
# explains why there is a second lock.
_PRAGMAS = (
    "locking_mode = EXCLUSIVE",
    "journal_mode = WAL",
    "synchronous = FULL",
    # A negative cache size is a number of kibibytes.
    "cache_size = -32768",
)
_TABLES = (
    """\
CREATE TABLE entries (
    number INTEGER PRIMARY KEY, entry TEXT NOT NULL, sha256 TEXT NOT NULL)""",
    """\
CREATE TABLE participations (
    device TEXT NOT NULL, round INTEGER NOT NULL, PRIMARY KEY (device, round)
) WITHOUT ROWID""",
    "CREATE INDEX cohorts ON participations (round, device)",
    """\
CREATE TABLE states (
    number INTEGER PRIMARY KEY, name TEXT, dtype TEXT, shape TEXT, content BLOB)""",
)
# For the rounds before a given round, this query returns the last round in which a
# device took part (`NEVER` if there is none), and the number of its participations.
_HISTORY = """
SELECT ifnull(max(round), -1), count(*) FROM participations WHERE device = ? AND round < ?
"""
_COHORT = "SELECT device FROM participations WHERE round = ? ORDER BY device"


@dataclasses.dataclass(frozen=True)
class RoundRecord:
    """What the ledger records about one round.

    Attributes:
      round_number: the round, from 0.
      point: SHA-256 of all entries up to and including the round's `started` entry.
        The entries include the digest of the previous state and a random number. The
        noise of the round is bound to `point`.
      measured: the measured participation up to and including this round.
      skipped_because: reason for skipping the round; None for a round with a result.
    """

    round_number: int
    point: str
    measured: MeasuredParticipation
    skipped_because: str | None = None


class Ledger(contextlib.AbstractContextManager):
    """The write-ahead log of one run, as a context manager that locks the file.

    Args:
      path: path of the file, which is created if it does not exist.
      run: the run's plan and settings, the same as when the file was created.

    Attributes:
      expected: the type and the round of the next entry, such as ("started", 0).

    Raises:
      BlockingIOError: if another process has the file open.
      OSError: if the file cannot be read or written. Every method may raise this error,
        and then closes the ledger.
      PermissionError: if anybody other than the owner may read the file.
      ValueError: if the file is damaged, or belongs to another run.
    """

    def __init__(self, path: str, run: dict[str, Any]) -> None:
        self._path = path
        try:
            self._lock = LedgerLock(path)
        except BlockingIOError as error:
            raise self._open_elsewhere() from error
        self._digest = _BEFORE_FIRST
        self._rounds: list[RoundRecord] = []
        self._state_digest = ""
        self.expected = ("run", _NO_ROUND)
        with self._guarded():
            # Create a new file, but do not open an existing one: if this process had it
            # open elsewhere, closing a second descriptor would release SQLite's locks.
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
            # SQLite creates its journal with the same permissions as this file.
            private_files.check_mode(path)
            database = sqlite3.connect(path, _WAIT, isolation_level=None)
            self._lock.database = database
            self._read(database, run)

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection and releases the lock; does nothing in a forked process."""
        self._lock.close()

    @property
    def rounds(self) -> list[RoundRecord]:
        """The records of all rounds that have begun, in order."""
        return list(self._rounds)

    @property
    def interrupted(self) -> RoundRecord | None:
        """The record of the round that has begun but is not finished, or None."""
        return (
            self._rounds[-1]
            if self.expected[0] == "finished" and self._rounds
            else None
        )

    def cohort(self, round_number: int) -> tuple[str, ...]:
        """Returns the sorted names of the devices in the cohort of a round."""
        with self._transaction() as database:
            return tuple(name for (name,) in database.execute(_COHORT, [round_number]))

    def history(self, names: Sequence[str], round_number: int) -> np.ndarray:
        """Returns each device's last round and number of participations before a round.

        Returns:
          int64, shape [names, 2]: the last round in which the device took part (or
          `NEVER`), and the number of its participations.
        """
        with self._transaction() as database:
            rows = [
                database.execute(_HISTORY, [name, round_number]).fetchone()
                for name in names
            ]
        return np.array(rows, np.int64).reshape(-1, 2)

    def point_with(self, device: str, round_number: int) -> str | None:
        """Returns `RoundRecord.point` if the device took part in the round, else None."""
        last_round, _ = self.history([device], round_number + 1)[0]
        return self._rounds[round_number].point if last_round == round_number else None

    def seal(self, text: str) -> str:
        """Returns a digest of a text, keyed with this ledger's secret."""
        return hashlib.blake2b(
            text.encode(), key=self._secret, person=b"round's receipt", digest_size=16
        ).hexdigest()

    def measured(self, num_rounds: int) -> MeasuredParticipation:
        """Returns the measured participation of the first `num_rounds` rounds."""
        rounds = self._rounds[:num_rounds]
        skipped = tuple(r.round_number for r in rounds if r.skipped_because)
        return dataclasses.replace(
            rounds[-1].measured if rounds else NOTHING,
            num_rounds=num_rounds,
            skipped_rounds=skipped,
        )

    def state(self, structure: Any) -> Any:
        """Returns the newest state, with the nested structure of `structure`.

        Raises:
          ValueError: if the stored state was changed, or does not fit `structure`.
        """
        query = "SELECT name, dtype, shape, content FROM states ORDER BY number"
        with self._transaction() as database:
            rows = database.execute(query).fetchall()
        if digest_of_rows(rows) != self._state_digest:
            raise ValueError(self._damaged("the digest of the state is wrong"))
        return state_of(rows, structure)

    def started(self, round_number: int, cohort: Sequence[str]) -> RoundRecord:
        """Records the start of a round, and its cohort's participations.

        Raises:
          TypeError: if a name is not a string.
          ValueError: if a different entry is expected next, or a name occurs twice.
        """
        if not all(isinstance(name, str) for name in cohort):
            raise TypeError(f"Device names must be strings, found {list(cohort)}.")
        if len(set(cohort)) != len(cohort):
            raise ValueError("Names in cohort must be unique, but one occurs twice.")
        measured = self._rounds[-1].measured if self._rounds else NOTHING
        for last, count in self.history(cohort, round_number).tolist():
            measured = measured.with_one(round_number, last, count)
        self._append(
            dict(
                entry="started",
                round=round_number,
                drawn=draw(),
                measured=dataclasses.astuple(measured)[:5],
            ),
            cohort,
        )
        return self._rounds[-1]

    def finished(
        self, round_number: int, state: Any, skipped: str | None = None
    ) -> None:
        """Records the state after a round, whose result may then be released.

        Args:
          round_number: -1 for the state before the first round.
          state: nested structure of arrays and numbers.
          skipped: reason why the round has no result; None if it has a result.

        Raises:
          TypeError: if the state has leaves other than arrays and numbers.
          ValueError: if a different entry is expected next.
        """
        self._append(
            dict(entry="finished", round=round_number, skipped=skipped), state=state
        )

    def released(self, round_number: int) -> None:
        """Records that all releases of a round are complete.

        Raises:
          ValueError: if a different entry is expected next.
        """
        self._append(dict(entry="released", round=round_number))

    def _append(
        self,
        entry: dict[str, Any],
        cohort: Sequence[str] = (),
        state: Any = None,
    ) -> None:
        self._check_order(entry)
        with self._transaction() as database:
            if state is not None:
                entry["state"] = _replace_state(database, state)
            text = json.dumps(entry, separators=(",", ":"))
            digest = _chained(self._digest, text, sorted(cohort))
            database.execute(
                "INSERT INTO entries (entry, sha256) VALUES (?, ?)", [text, digest]
            )
            database.executemany(
                "INSERT INTO participations VALUES (?, ?)",
                [(name, entry["round"]) for name in cohort],
            )
        self._take(entry, digest)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """A context manager for a transaction: all changes reach the disk, or none."""
        if self._lock.database is None:
            raise ValueError(
                f"{self._path} is closed, or was opened by the parent process. Open the "
                f"ledger again, but in one program only. Two programs that continue the "
                f"same run would spend more than the plan permits."
            )
        with self._guarded():
            # At the end, SQLite commits the transaction, or rolls it back if an error
            # occurred.
            with self._lock.database as database:
                database.execute("BEGIN")
                yield database
            self._lock.check()

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """A context manager that closes the ledger after an error.

        After an error, the attributes of the ledger may be wrong.
        """
        try:
            yield
        except sqlite3.DatabaseError as error:
            self.close()
            if "locked" in str(error):
                raise self._open_elsewhere() from error
            is_other = isinstance(error, sqlite3.OperationalError)
            # "no such ..." means that a table or a column is missing: a damaged file.
            if not is_other or "no such" in str(error):
                raise ValueError(self._damaged(str(error))) from error
            raise OSError(
                f"{self._path} cannot be read or written ({error}). The disk may be full "
                f"or read-only. This call did not begin a round or release anything. Fix "
                f"the cause, and continue the run."
            ) from error
        except BaseException:
            self.close()
            raise

    def _open_elsewhere(self) -> BlockingIOError:
        return BlockingIOError(
            f"Another program has {self._path} open. Two programs of the same run would "
            f"spend more than its plan permits. End the other program first."
        )

    def _read(self, database: sqlite3.Connection, run: dict[str, Any]) -> None:
        for pragma in _PRAGMAS:
            database.execute(f"PRAGMA {pragma}")
        expected = {"entry": "run", "round": _NO_ROUND, "format": _FORMAT, **run}
        if not database.execute("SELECT 1 FROM sqlite_master").fetchone():
            database.executescript(f"BEGIN; {'; '.join(_TABLES)}; COMMIT;")
        self._lock.watch()
        query = "SELECT number, entry, sha256 FROM entries ORDER BY number"
        participations = 0
        for number, (position, text, stated) in enumerate(
            database.execute(query), start=1
        ):
            cohort: list[str] = []
            if self.expected[0] == "started":
                rows = database.execute(_COHORT, [self.expected[1]])
                cohort = [name for (name,) in rows]
            participations += len(cohort)
            digest = _chained(self._digest, text, cohort)
            if (position, stated) != (number, digest):
                raise ValueError(self._damaged(f"entry {position} is wrong"))
            entry = json.loads(text)
            if number == 1 and {**entry, "secret": ""} != {**expected, "secret": ""}:
                raise ValueError(self._of_another_run(entry, expected))
            self._check_order(entry)
            self._take(entry, digest)
        if self.expected[0] == "run":
            self._append({**expected, "secret": draw()})
            private_files.sync(os.path.dirname(os.path.abspath(self._path)))
        # The schema must be exactly `_TABLES`. With another schema, the file could have
        # duplicate rows, or triggers that change values.
        tables = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY sql"
        if database.execute(tables).fetchall() != [(sql,) for sql in sorted(_TABLES)]:
            raise ValueError(self._damaged("the schema of the tables is wrong"))
        count = "SELECT count(*) FROM participations"
        if database.execute(count).fetchone() != (participations,):
            raise ValueError(self._damaged("the number of participations is wrong"))

    def _of_another_run(self, entry: dict[str, Any], expected: dict[str, Any]) -> str:
        differences = "; ".join(
            f"{name} was {entry.get(name)!r} and is {expected.get(name)!r}"
            for name in {**expected, **entry}
            if entry.get(name) != expected.get(name) and name != "secret"
        )
        return (
            f"{self._path} belongs to another run: {differences}. Use the version, the "
            f"plan, the model and the settings of that run, or begin a new run, with a "
            f"separate privacy budget, in another folder."
        )

    def _damaged(self, what: str) -> str:
        return (
            f"{self._path} is damaged or was changed ({what}). The run cannot continue, "
            f"because the record of its releases is lost."
        )

    def _check_order(self, entry: dict[str, Any]) -> None:
        """Raises ValueError if an entry of another type or round is expected next."""
        if (entry["entry"], entry["round"]) != self.expected:
            raise ValueError(
                f"The ledger's next entry must be {self.expected[0]!r} for round "
                f"{self.expected[1]}, but found {entry['entry']!r} for round "
                f"{entry['round']}. Start, finish and release each round in this order."
            )

    def _take(self, entry: dict[str, Any], digest: str) -> None:
        """Updates this object's attributes after an entry was read or written.

        Args:
          entry: the entry.
          digest: SHA-256 of this entry and all entries before it.
        """
        self._digest = digest
        kind, number = entry["entry"], entry["round"]
        if kind == "run":
            self._secret = entry["secret"].encode()
        elif kind == "started":
            measured = MeasuredParticipation(*entry["measured"])
            record = RoundRecord(number, digest, measured)
            self._rounds.append(record)
        elif kind == "finished":
            self._state_digest = entry["state"]
            if entry["skipped"] is not None:
                last = self._rounds[-1]
                self._rounds[-1] = dataclasses.replace(
                    last, skipped_because=entry["skipped"]
                )
        after = _AFTER[kind]
        self.expected = (after, number + 1 if after == "started" else number)


def draw() -> str:
    """Returns a 128-bit random number from the operating system, as hex digits."""
    return secrets.token_hex(16)


def _replace_state(database: sqlite3.Connection, state: Any) -> str:
    """Replaces the previous state, and returns the digest of the new state."""
    database.execute("DELETE FROM states")
    insert = "INSERT INTO states (name, dtype, shape, content) VALUES (?, ?, ?, ?)"

    def written() -> Iterator[Any]:
        for row in rows_of(state):
            database.execute(insert, row)
            yield row

    return digest_of_rows(written())


def _chained(before: str, entry: str, cohort: Sequence[str]) -> str:
    content = "\n".join((before, entry, json.dumps(cohort)))
    return hashlib.sha256(content.encode()).hexdigest()
