"""Which rounds' noise was handed out, and the one use that each of it has.

Noise of a round is a pure function of key, run and round. Two results with the same noise
differ by what the clients sent: so a round's noise is handed out once, and what was handed
out is used once. A program that goes on with the key of an earlier one must know what that
one handed out: from a file that is written ahead (`keep_at`), or from a ledger (`know`).
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tf_bandmf.files import private as private_files

_FORMAT = "tf-bandmf-federated noise uses 1"
_NONE = -1  # no round's noise was handed out


class NoiseUses:
    """The record of the noise of one key, safe for threads. Runs have numbers.

    Args:
      is_complete: whether all that was handed out is known. False: the key is of an
        earlier program, and a run is unknown until `know` or `keep_at` tells of it.
    """

    def __init__(self, is_complete: bool = True) -> None:
        self._thread_lock = threading.Lock()
        self._is_complete = is_complete
        self._last: dict[int, int] = {}
        self._ready: set[tuple[int, int]] = set()
        self._path: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing was handed out, as far as is known."""
        with self._thread_lock:
            return all(last == _NONE for last in self._last.values())

    def know(self, run: int, last_round: int) -> None:
        """What a complete record says: up to which round noise of a run was handed out.

        Args:
          run: its number.
          last_round: -1 for none.
        """
        with self._locked():
            self._record(run, last_round)

    def keep_at(self, path: str, is_new: bool) -> None:
        """Keeps the record in a private file from now on, written before noise is used.

        Beside it is a lock, so that of two programs with one record only one gets a
        round's noise. If the file is missing although the key was used with it, no run
        is known.

        Args:
          path: of the file.
          is_new: whether the key comes to this place for the first time.

        Raises:
          PermissionError: if others than the owner may read the file.
          ValueError: if it is damaged.
        """
        path = os.path.abspath(path)
        with self._thread_lock:
            self._path = path
            with _file_lock(path):
                if os.path.exists(path):
                    self._is_complete = self._read()
                elif not is_new:
                    self._is_complete = False
                self._write()

    def hand_out(self, run: int, round_number: int, replay: bool) -> None:
        """The noise of a round leaves, for one use.

        Raises:
          ValueError: without `replay`, if it left before, or may have.
        """
        with self._locked():
            if not replay:
                if not self._is_known(run):
                    raise ValueError(
                        f"The noise key is of an earlier program, and it is not known "
                        f"whether that one handed out the noise of round "
                        f"{round_number}. Give the folder that kept the record "
                        f"(noise_dir), or go on with train_model, whose ledger has it; "
                        f"or say replay=True if cohort and data are the same as then. "
                        f"A new run needs a new key."
                    )
                if round_number <= self._last.get(run, _NONE):
                    raise ValueError(
                        f"The noise of round {round_number} was handed out already. "
                        f"With another cohort it would reveal both cohorts' "
                        f"contributions. Skip the round, or say replay=True if the "
                        f"cohort and its data are the same."
                    )
            self._record(run, round_number, only_if_known=True)
            self._ready.add((run, round_number))

    def pass_over(self, run: int, round_number: int) -> None:
        """The noise of a round does not leave any more, but for a replay."""
        with self._locked():
            self._record(run, round_number, only_if_known=True)
            self._ready.discard((run, round_number))

    def take(self, run: int, round_number: int) -> None:
        """The noise that was handed out is used now.

        Raises:
          ValueError: if this process did not hand it out, or it was used.
        """
        with self._thread_lock:
            if (run, round_number) not in self._ready:
                raise ValueError(
                    f"The noise of round {round_number} was used already: a second "
                    f"result with it would reveal what the clients sent. A prepared "
                    f"state is for one call of next; go on with the state that it "
                    f"returned. To repeat the round with the same cohort and data, "
                    f"call prepare(state, replay=True)."
                )
            self._ready.remove((run, round_number))

    def take_first(self, run: int, round_number: int) -> None:
        """`take` for noise that nobody hands out: of a later round than ever before.

        Raises:
          ValueError: if it was used, and not handed out again.
        """
        with self._thread_lock:
            is_new = round_number > self._last.get(run, _NONE)
            self._last[run] = max(round_number, self._last.get(run, _NONE))
            if is_new:
                self._ready.add((run, round_number))
        self.take(run, round_number)

    def give_back(self, run: int, round_number: int) -> None:
        """The use failed and has no result: the noise may be used after all."""
        with self._thread_lock:
            self._ready.add((run, round_number))

    def _is_known(self, run: int) -> bool:
        return self._is_complete or run in self._last

    def _record(self, run: int, last: int, only_if_known: bool = False) -> None:
        if only_if_known and not self._is_known(run):
            return  # or it would seem as if nothing later had been handed out
        if last > self._last.get(run, _NONE - 1):
            self._last[run] = last
            self._write()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """With what other threads, and other programs with this record, wrote."""
        with self._thread_lock:
            if self._path is None:
                yield
                return
            with _file_lock(self._path):
                if not os.path.exists(self._path):
                    raise ValueError(
                        f"{self._path}, the record of what noise was handed out, is "
                        f"gone. Bring it back, or the run cannot go on."
                    )
                self._read()
                yield

    def _read(self) -> bool:
        """Takes over what the file has; returns whether it is complete."""
        assert self._path is not None
        content = json.loads(private_files.read(self._path))
        if content["format"] != _FORMAT:
            raise ValueError(
                f"{self._path} has format {content['format']!r}; this version reads "
                f"{_FORMAT!r}."
            )
        for name, last in content["last"].items():
            self._last[int(name)] = max(last, self._last.get(int(name), _NONE))
        return bool(content["is_complete"])

    def _write(self) -> None:
        if self._path is None:
            return
        content = {
            "format": _FORMAT,
            "is_complete": self._is_complete,
            "last": self._last,
        }
        private_files.write(self._path, json.dumps(content).encode())


@contextmanager
def _file_lock(path: str) -> Iterator[None]:
    descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
