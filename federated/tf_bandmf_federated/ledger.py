"""The write-ahead record of a training program: what was begun, before it is done.

A round that is run twice, with two cohorts or two models, spends more than the plan. So
before a round is sent to anybody, the ledger records its cohort, data and state; and
before anything is released, its result. After a crash, the program repeats a round only
if all of these are the same; otherwise it skips the round.

The file is an SQLite database. Its journal ensures that an entry is either complete or
absent, and on the disk before the call returns. It has two tables:

`entries`: each has the SHA-256 of itself and the digest of the one before.

| entry | fields |
|---|---|
| `run` | the first one: plan's fingerprint, model and settings of the process |
| `initial` | digest of the state before round 0 |
| `started` | round, key id, digests of cohort and state |
| | the first time also drawn, counts, and names of the cohort |
| `result` | round, digest of the state after it |
| `skipped` | round, reason |
| `releasing` | round, digest of the model that leaves now |
| `released` | round |

`participations`: device and round, which decide who may take part. It repeats the
  cohorts of the entries, and the two are compared when the file is opened.

A skipped round has no result, but the model before it may be released in its place. The
file contains names of devices: only its owner may read it (mode 0600).
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
from tf_bandmf_federated import participations
from tf_bandmf_federated.accounting import Counts, MeasuredParticipation
from tf_bandmf_federated.ledger_lock import LedgerLock

# Rounds that are repeated need the same digests.
_FORMAT = f"tf-bandmf-federated ledger 8, digests {digests.VERSION}"
_BEFORE_FIRST = "0" * 64
_WAIT = 1.0  # seconds for another connection to end
# A transaction is on the disk when it ends. The connection locks the file, from its first
# look until it is closed, also against others of this process: so the journal needs no
# shared memory. `ledger_lock` says what else there is.
_PRAGMAS = (
    "locking_mode = EXCLUSIVE",
    "journal_mode = WAL",
    "synchronous = FULL",
    "cache_size = -32768",  # kilobytes
)
_TABLE = """\
CREATE TABLE entries (
    number INTEGER PRIMARY KEY, entry TEXT NOT NULL, names TEXT, sha256 TEXT NOT NULL)"""
_TABLES = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY sql"


@dataclasses.dataclass(frozen=True)
class RoundRecord:
    """What the ledger says about one round.

    Attributes:
      round_number: from 0.
      key_id: distinguishes keys, and reveals nothing about them.
      cohort_digest: SHA-256 of names, tags and data.
      state_digest: SHA-256 of the program's state before the round.
      drawn: a random number to which the round's noise is also bound.
      result_digest: SHA-256 of the state after it, or None.
      release_digest: SHA-256 of the model that was released after it; None if none was,
        not even in part.
      is_released: whether everything that is released after the round was released.
      skipped_because: why its result was discarded, or None.
      starts: how often the round was begun.
    """

    round_number: int
    key_id: int
    cohort_digest: str
    state_digest: str
    drawn: str = ""
    result_digest: str | None = None
    release_digest: str | None = None
    is_released: bool = False
    skipped_because: str | None = None
    starts: int = 1


class Ledger:
    """The write-ahead record of one run; a context manager that locks the file.

    Args:
      path: path of the file; it is created if it does not exist.
      run: what the run is made for; must be equal whenever the file is opened.

    Attributes:
      initial_digest: SHA-256 of the state before round 0, or None.

    Raises:
      BlockingIOError: if another process has it open.
      OSError: if it cannot be read or written; every method may raise it. The ledger is
        then closed.
      PermissionError: if anybody but the owner may read it.
      ValueError: if it is damaged, or belongs to another run.
    """

    def __init__(self, path: str, run: dict[str, Any]) -> None:
        self._path = path
        self._owner = os.getpid()
        try:
            self._lock = LedgerLock(path)
        except BlockingIOError as error:
            raise self._open_elsewhere() from error
        self._digest = _BEFORE_FIRST
        self._rounds: dict[int, RoundRecord] = {}
        self._counts: dict[int, Counts] = {}
        self.initial_digest: str | None = None
        self._database: sqlite3.Connection | None = None
        try:
            # Only a new file is opened here: closing one that is open would end SQLite's
            # locks.
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
            private_files.check_mode(path)  # which SQLite gives its journal, too
            self._database = sqlite3.connect(path, _WAIT, isolation_level=None)
            self._read(run)
        except BaseException as error:
            self.close()
            if not isinstance(error, sqlite3.DatabaseError):
                raise
            is_other = isinstance(error, sqlite3.OperationalError)
            # A table or column, or names that are no JSON.
            is_damage = any(word in str(error) for word in ("no such", "malformed"))
            if is_other and not is_damage:
                raise self._unusable(error) from error
            raise ValueError(self._damaged(str(error))) from error

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection, and its lock. A forked process leaves both."""
        if os.getpid() != self._owner:
            return
        if self._database is not None:
            self._database.close()
            self._database = None
        self._lock.close()

    @property
    def rounds(self) -> dict[int, RoundRecord]:
        """The rounds that were begun, in order."""
        return dict(self._rounds)

    def initial(self, state_digest: str) -> None:
        """The run begins, with this state; again, with another one, if none was saved.

        Raises:
          ValueError: if a round was begun already.
        """
        self._append(entry="initial", state_digest=state_digest)

    def cohort(self, round_number: int) -> tuple[str, ...]:
        """Names of the devices that a round was begun with, in the order of their data."""
        query = (
            "SELECT names FROM entries WHERE names IS NOT NULL "
            "AND json_extract(entry, '$.round') = ?"
        )
        with self._transaction() as database:
            (names,) = database.execute(query, [round_number]).fetchone()
        return tuple(json.loads(names))

    def records(self, names: Sequence[str], round_number: int) -> np.ndarray:
        """What devices did in the rounds before one.

        Returns:
          int64, shape [names, 2]: last round, `NEVER` for none, and participations.
        """
        query = [round_number, json.dumps(list(names))]
        with self._transaction() as database:
            rows = database.execute(participations.RECORDS, query).fetchall()
        return np.array(rows, np.int64).reshape(-1, 2)

    def drawn_with(self, device: str, round_number: int) -> str | None:
        """What a round drew in which this device took part; None if it did not."""
        query = "SELECT 1 FROM participations WHERE device = ? AND round = ?"
        with self._transaction() as database:
            found = database.execute(query, [device, round_number]).fetchone()
        return self._rounds[round_number].drawn if found else None

    def measured(self, num_rounds: int) -> MeasuredParticipation:
        """Separation and participations of the first rounds, as they were begun."""
        known = list(self._rounds.values())[:num_rounds]
        skipped = tuple(r.round_number for r in known if r.skipped_because)
        return self._counts_of(num_rounds - 1).measured(num_rounds, skipped)

    def _counts_of(self, round_number: int) -> Counts:
        return self._counts.get(round_number, Counts())

    def started(
        self,
        round_number: int,
        key_id: int,
        cohort: tuple[str, ...],
        cohort_digest: str,
        state_digest: str,
    ) -> None:
        """A round begins from this state; its cohort counts as having taken part.

        Raises:
          ValueError: if the round was begun for others, or was skipped; if an earlier
            round is missing; if a name occurs twice.
        """
        if len(set(cohort)) != len(cohort):
            raise ValueError("A device is twice in a round.")
        if any("\0" in name for name in cohort):  # where SQLite's JSON ends a text
            raise ValueError("Names of devices must not contain a zero character.")
        entry = dict(
            entry="started",
            round=round_number,
            key_id=key_id,
            cohort_digest=cohort_digest,
            state_digest=state_digest,
        )
        if round_number in self._rounds:
            self._append(**entry)  # raises unless all is the same
            return
        counts = dataclasses.replace(self._counts_of(round_number - 1))
        for record in self.records(cohort, round_number).tolist():
            counts.add(round_number, *record)
        entry.update(drawn=draw(), counts=dataclasses.astuple(counts))
        self._take(entry)
        self._write(entry, cohort)

    def result(self, round_number: int, result_digest: str) -> None:
        """The round has a result, which may be released from now on.

        Raises:
          ValueError: if the round had another result, was not begun, or was skipped.
        """
        self._append(entry="result", round=round_number, result_digest=result_digest)

    def releasing(self, round_number: int, release_digest: str) -> None:
        """A model leaves after the round, from now on.

        Raises:
          ValueError: if another model left after the round, or it has no result and was
            not skipped.
        """
        self._append(
            entry="releasing", round=round_number, release_digest=release_digest
        )

    def released(self, round_number: int) -> None:
        """Everything that is released after the round was released.

        Raises:
          ValueError: if the round has no result and was not skipped.
        """
        self._append(entry="released", round=round_number)

    def skipped(self, round_number: int, reason: str) -> None:
        """The round is skipped for good; what was not yet released never will be.

        Raises:
          ValueError: if the round was not begun.
        """
        self._append(entry="skipped", round=round_number, reason=reason)

    def _append(self, **entry: Any) -> None:
        self._take(entry)  # first: a contradiction is not written
        self._write(entry)

    def _write(
        self, entry: dict[str, Any], cohort: tuple[str, ...] | None = None
    ) -> None:
        text = json.dumps(entry, separators=(",", ":"))
        names = None if cohort is None else json.dumps(cohort)
        digest = _chained(self._digest, text, names)
        with self._transaction() as database:
            database.execute(
                "INSERT INTO entries (entry, names, sha256) VALUES (?, ?, ?)",
                [text, names, digest],
            )
            database.executemany(
                "INSERT INTO participations VALUES (?, ?)",
                [(name, entry["round"]) for name in cohort or ()],
            )
        self._digest = digest

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Writes all of its changes or none; they are on the disk at its end."""
        if os.getpid() != self._owner or self._database is None:
            raise ValueError(
                f"{self._path} was opened by another process, of which this one is a "
                f"fork, or is closed. Two programs of one run spend more than its plan: "
                f"end the other one, and call again."
            )
        try:
            with self._database as database:  # commits, or rolls back
                database.execute("BEGIN")
                yield database
            self._lock.check()
        except BaseException as error:
            # What was taken over here may not be on the disk.
            self.close()
            if isinstance(error, sqlite3.OperationalError):
                raise self._unusable(error) from error
            raise

    def _unusable(self, error: sqlite3.Error) -> OSError:
        if "locked" in str(error):
            return self._open_elsewhere()
        return OSError(
            f"{self._path} cannot be used now ({error}): the disk is full, or nobody may "
            f"write there. Nothing was begun or released by this. Mend it, and call again."
        )

    def _open_elsewhere(self) -> BlockingIOError:
        return BlockingIOError(
            f"Another program has {self._path} open. Two programs of one run would "
            f"spend more than its plan; end the other one first."
        )

    def _read(self, run: dict[str, Any]) -> None:
        assert self._database is not None
        for pragma in _PRAGMAS:
            self._database.execute(f"PRAGMA {pragma}")
        expected = {"entry": "run", "format": _FORMAT, **run}
        if not self._database.execute("SELECT 1 FROM sqlite_master").fetchone():
            self._database.executescript(
                f"BEGIN; {_TABLE}; {participations.TABLE}; COMMIT;"
            )
        self._lock.watch(self._database)
        query = "SELECT number, entry, names, sha256 FROM entries ORDER BY number"
        number = 0
        for number, (found, text, names, stated) in enumerate(
            self._database.execute(query), start=1
        ):
            self._digest = _chained(self._digest, text, names)
            if (found, stated) != (number, self._digest):
                raise ValueError(self._damaged(f"Its entry {found}"))
            entry = json.loads(text)
            if number > 1:
                self._take(entry)
            elif entry != expected:
                raise ValueError(self._of_another_run(entry, expected))
        if number == 0:
            self._write(expected)
            private_files.sync_folder(os.path.dirname(os.path.abspath(self._path)))
        # Others may hold a row twice, and triggers change what is written.
        tables = self._database.execute(_TABLES).fetchall()
        if tables != [(_TABLE,), (participations.TABLE,)]:
            raise ValueError(self._damaged("Its tables"))
        if self._database.execute(participations.IS_WHOLE).fetchone() != (1,):
            raise ValueError(self._damaged("Its table of participations"))

    def _of_another_run(self, found: dict[str, Any], expected: dict[str, Any]) -> str:
        differences = "; ".join(
            f"{name} was {found.get(name)!r} and is {expected.get(name)!r}"
            for name in {**expected, **found}
            if found.get(name) != expected.get(name)
        )
        return (
            f"{self._path} is of another run: {differences}. Go on with the version, the "
            f"plan, the model and the settings of that run, or begin a new one, with a "
            f"privacy budget of its own, elsewhere."
        )

    def _damaged(self, what: str) -> str:
        return (
            f"{self._path} is damaged or was changed ({what}). What the run released is "
            f"not known any more: it cannot go on."
        )

    def _take(self, entry: dict[str, Any]) -> None:
        """Takes an entry over into the records."""
        kind = entry["entry"]
        if kind == "initial":
            if self._rounds:
                raise ValueError(
                    "Rounds were begun already: the run has its first state."
                )
            self.initial_digest = entry["state_digest"]
            return
        number = entry["round"]
        known = self._rounds.get(number)
        if kind == "started":
            record = RoundRecord(
                number,
                entry["key_id"],
                entry["cohort_digest"],
                entry["state_digest"],
                entry.get("drawn", ""),  # again, the same number
            )
            self._rounds[number] = self._started(known, record)
            if known is None:
                self._counts[number] = Counts(*entry["counts"])
            return
        if known is None:
            raise ValueError(f"Round {number} was not begun: it cannot be {kind}.")
        if kind == "skipped":
            known = dataclasses.replace(known, skipped_because=entry["reason"])
        elif kind == "result":
            if known.skipped_because is not None:
                raise ValueError(f"Round {number} was skipped: it has no result.")
            if known.result_digest not in (None, entry["result_digest"]):
                raise ValueError(
                    f"Round {number} has another result already: this one must be "
                    f"thrown away."
                )
            known = dataclasses.replace(known, result_digest=entry["result_digest"])
        else:
            known = _released(known, entry)
        self._rounds[number] = known

    def _started(self, known: RoundRecord | None, record: RoundRecord) -> RoundRecord:
        """The record of a round that begins, maybe not for the first time."""
        number = record.round_number
        if known is None:
            expected = max(self._rounds, default=-1) + 1
            if number != expected:
                raise ValueError(
                    f"Round {expected} is the next one of the ledger, found {number}."
                )
            return record
        if known.skipped_because is not None:
            raise ValueError(f"Round {number} was skipped: it is not begun again.")
        if not is_same(known, record):
            raise ValueError(
                f"Round {number} was begun for another cohort or state: it must not be "
                f"run for this one. Skip the round."
            )
        return dataclasses.replace(known, starts=known.starts + 1)


def draw() -> str:
    """A random number for a round that begins: 128 bits from the operating system."""
    return secrets.token_hex(16)


def _released(known: RoundRecord, entry: dict[str, Any]) -> RoundRecord:
    """The record of a round after which something leaves, or has left."""
    number = known.round_number
    if known.result_digest is None and known.skipped_because is None:
        raise ValueError(f"Round {number} has no result to release.")
    if entry["entry"] == "released":
        return dataclasses.replace(known, is_released=True)
    if known.release_digest not in (None, entry["release_digest"]):
        raise ValueError(
            f"Another model was released after round {number}: this one must not be."
        )
    return dataclasses.replace(known, release_digest=entry["release_digest"])


def is_same(first: RoundRecord, second: RoundRecord) -> bool:
    """Whether two records are of one round with the same key, cohort, data and state."""
    return all(
        getattr(first, name) == getattr(second, name)
        for name in ("round_number", "key_id", "cohort_digest", "state_digest")
    )


def _chained(before: str, entry: str, names: str | None) -> str:
    content = "\n".join((before, entry, names or ""))
    return hashlib.sha256(content.encode()).hexdigest()
