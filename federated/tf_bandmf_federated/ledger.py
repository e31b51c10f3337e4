"""The write-ahead record of a training program: what was begun, before it is done.

Noise of a round is a pure function of the key. Used twice, with two cohorts or two models,
it cancels, and the difference of the two results is the difference of what the clients
sent. So before the noise of a round is used, the ledger says for which cohort, data and
state; and before anything is released, which result it was. After a crash the program
repeats a round only if all of these are the same, and otherwise passes over it.

The file has a line of JSON for each entry, with the SHA-256 of this entry and the digest of
the line before. An entry is on the disk before the call returns.

| entry | fields |
|---|---|
| `run` | the first one: plan's fingerprint, model and settings of the process |
| `initial` | digest of the state before round 0 |
| `started` | round, key id, names of the cohort, digests of cohort and state |
| `result` | round, digest of the state after it |
| `skipped` | round, reason |
| `releasing` | round, digest of the model that leaves now |
| `released` | round |

A skipped round has no result, but the model as it stood before it may be released in its
place.

Names of clients are in it: only the owner may read the file (mode 0600).
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import os
from typing import Any

from tf_bandmf.files import private as private_files

_FORMAT = "tf-bandmf-federated ledger 3"
_BEFORE_FIRST = "0" * 64


@dataclasses.dataclass(frozen=True)
class RoundRecord:
    """What the ledger says of one round.

    Attributes:
      round_number: from 0.
      key_id: which tells keys apart, and reveals nothing of them.
      cohort: names of the clients, in the order of their data.
      cohort_digest: SHA-256 of names, tags and data.
      state_digest: SHA-256 of the program's state before the round.
      result_digest: SHA-256 of the state after it, or None.
      release_digest: SHA-256 of the model that was released after it, or None: none
        was, not even in part.
      is_released: whether all that is released after the round was.
      skipped_because: why its result was thrown away, or None.
      starts: how often the round was begun.
    """

    round_number: int
    key_id: int
    cohort: tuple[str, ...]
    cohort_digest: str
    state_digest: str
    result_digest: str | None = None
    release_digest: str | None = None
    is_released: bool = False
    skipped_because: str | None = None
    starts: int = 1


class Ledger:
    """The write-ahead record of one run; a context manager that holds the file's lock.

    Args:
      path: of the file; it is created if it is not there.
      run: what the run is made for; equal whenever the file is opened.

    Raises:
      BlockingIOError: if another process has it open.
      PermissionError: if others than the owner may read it.
      ValueError: if it is damaged, or of another run.
    """

    def __init__(self, path: str, run: dict[str, Any]) -> None:
        self._path = path
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._file = os.fdopen(descriptor, "r+b")
        try:
            self._lock()
            private_files.check_mode(path)
            self._digest = _BEFORE_FIRST
            self._rounds: dict[int, RoundRecord] = {}
            self._initial_digest: str | None = None
            self._read(run)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()  # and the lock with it

    @property
    def rounds(self) -> dict[int, RoundRecord]:
        """The rounds that were begun, in their order."""
        return dict(self._rounds)

    @property
    def initial_digest(self) -> str | None:
        """SHA-256 of the state before round 0, or None."""
        return self._initial_digest

    def initial(self, state_digest: str) -> None:
        """The run begins, with this state; again, with another one, if none was saved.

        Raises:
          ValueError: if a round was begun already.
        """
        self._append(entry="initial", state_digest=state_digest)

    def started(
        self,
        round_number: int,
        key_id: int,
        cohort: tuple[str, ...],
        cohort_digest: str,
        state_digest: str,
    ) -> None:
        """A round begins: its noise may be used for this cohort and state from now on.

        Raises:
          ValueError: if the round was begun for others, or was skipped; or if an earlier
            one is missing.
        """
        self._append(
            entry="started",
            round=round_number,
            key_id=key_id,
            cohort=list(cohort),
            cohort_digest=cohort_digest,
            state_digest=state_digest,
        )

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
        """All that is released after the round was.

        Raises:
          ValueError: if the round has no result and was not skipped.
        """
        self._append(entry="released", round=round_number)

    def skipped(self, round_number: int, reason: str) -> None:
        """The round is passed over for ever; what was not yet released never will be.

        Raises:
          ValueError: if the round was not begun.
        """
        self._append(entry="skipped", round=round_number, reason=reason)

    def _append(self, **entry: Any) -> None:
        self._take(entry)  # first: a contradiction is not written
        self._write(entry)

    def _write(self, entry: dict[str, Any]) -> None:
        self._digest = _chained(self._digest, entry)
        line = json.dumps({"sha256": self._digest, **entry}, separators=(",", ":"))
        self._file.seek(0, os.SEEK_END)
        self._file.write(line.encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BlockingIOError(
                f"Another program has {self._path} open. Two programs of one run would "
                f"use its noise twice; end the other one first."
            ) from error

    def _read(self, run: dict[str, Any]) -> None:
        lines = self._file.read().split(b"\n")
        torn = lines.pop()  # b"" if the last line is whole
        if torn:
            # Its call never returned: nothing was done that it announces.
            self._file.truncate(self._file.tell() - len(torn))
        expected = {"entry": "run", "format": _FORMAT, **run}
        if not lines:
            self._write(expected)
            private_files.sync_folder(os.path.dirname(os.path.abspath(self._path)))
            return
        for number, line in enumerate(lines, start=1):
            entry = self._entry(line, number)
            if number > 1:
                self._take(entry)
            elif entry != expected:
                raise ValueError(self._of_another_run(entry, expected))

    def _entry(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            entry = json.loads(line)
            stated = entry.pop("sha256")
            self._digest = _chained(self._digest, entry)
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ValueError(self._damaged(number)) from error
        if stated != self._digest:
            raise ValueError(self._damaged(number))
        return entry

    def _of_another_run(self, found: dict[str, Any], expected: dict[str, Any]) -> str:
        names = [
            name
            for name in {**expected, **found}
            if found.get(name) != expected.get(name)
        ]
        differences = "; ".join(
            f"{name} was {found.get(name)!r} and is {expected.get(name)!r}"
            for name in names
        )
        return (
            f"{self._path} is of another run: {differences}. Go on with the plan, the "
            f"model and the settings of that run, or begin a new one, with a privacy "
            f"budget of its own, elsewhere."
        )

    def _damaged(self, number: int) -> str:
        return (
            f"Line {number} of {self._path} is damaged or was changed. What the run "
            f"released is not known any more: it cannot go on."
        )

    def _take(self, entry: dict[str, Any]) -> None:
        """Takes an entry over into the records."""
        kind = entry["entry"]
        if kind == "initial":
            if self._rounds:
                raise ValueError(
                    "Rounds were begun already: the run has its first state."
                )
            self._initial_digest = entry["state_digest"]
            return
        number = entry["round"]
        known = self._rounds.get(number)
        if kind == "started":
            record = RoundRecord(
                round_number=number,
                key_id=entry["key_id"],
                cohort=tuple(entry["cohort"]),
                cohort_digest=entry["cohort_digest"],
                state_digest=entry["state_digest"],
            )
            self._rounds[number] = self._started(known, record)
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
                f"Round {number} was begun for another cohort or state: its noise must "
                f"not be used for this one. Skip the round."
            )
        return dataclasses.replace(known, starts=known.starts + 1)


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
        for name in (
            "round_number",
            "key_id",
            "cohort",
            "cohort_digest",
            "state_digest",
        )
    )


def _chained(before: str, entry: dict[str, Any]) -> str:
    content = json.dumps(entry, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(before.encode() + content.encode()).hexdigest()
