"""One program for a ledger's file, where SQLite's locks are not enough.

A process loses its POSIX locks of a file when it closes any descriptor of it, such as that
of a copy which it makes; hence a lock beside them, of a file of its own. A fork that ends
would close the connection, which takes the journal away from the program that writes there.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
import weakref

from tf_bandmf.files.locks import Lock


class LedgerLock:
    """A lock of `<path>.lock`, which no fork keeps; and whether the files stay in place.

    Args:
      path: of the ledger.

    Raises:
      BlockingIOError: if another program has it, or another ledger of this one.
      OSError: if the ledger has another name, for which there would be another lock.
    """

    def __init__(self, path: str) -> None:
        path = os.path.realpath(path)  # where SQLite has the journal, too
        self._paths = (path, f"{path}-wal")
        self._database: sqlite3.Connection | None = None
        self._numbers: list[int] = []
        self._lock = Lock(f"{path}.lock")
        if os.path.exists(path) and os.stat(path).st_nlink > 1:
            self._lock.close()
            raise OSError(
                f"{path} has another name (a hard link), under which another program could "
                f"use it. Nothing was begun or released by this. Remove one of the names; "
                f"`find / -samefile {path}` finds them. A backup is a copy, not a link."
            )
        _LOCKS.add(self)

    def watch(self, database: sqlite3.Connection) -> None:
        """Takes the files of this connection for the ledger and its journal."""
        self._database, self._numbers = database, self._file_numbers()

    def check(self) -> None:
        """Raises OSError unless the files of the connection are where they were."""
        try:
            is_same = self._file_numbers() == self._numbers
        except FileNotFoundError:
            is_same = False
        if not is_same:
            raise OSError(
                f"{self._paths[0]} or its journal was deleted, moved or replaced while "
                f"the program ran: what it writes is lost. Nothing was begun or released "
                f"by this. Put the run's newest files there, and start again."
            )

    def close(self) -> None:
        """Ends the lock."""
        self._lock.close()
        self._database = None

    def leave(self) -> None:
        """Leaves connection and lock to the program that this one is a fork of."""
        if self._database is not None:
            # Never freed, it is never closed.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._database))
        self._database = None

    def _file_numbers(self) -> list[int]:
        # A file that is open keeps its number.
        return [os.stat(path).st_ino for path in self._paths]


_LOCKS: weakref.WeakSet[LedgerLock] = weakref.WeakSet()
os.register_at_fork(after_in_child=lambda: [*map(LedgerLock.leave, [*_LOCKS])])
