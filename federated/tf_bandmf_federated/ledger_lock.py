"""A lock that lets only one program use a ledger, where SQLite's locks do not suffice.

A process loses its POSIX locks on a file when it closes any descriptor of the file, for
example after copying the file. Therefore there is a second lock, on a separate file. In
addition, the end of a forked process would close the connection, and thereby remove the
journal that its parent still writes.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
import weakref

from tf_bandmf.files.locks import Lock


class LedgerLock:
    """A lock on `<path>.lock` that forks do not keep, and a check that files stay in place.

    Args:
      path: path of the ledger.

    Raises:
      BlockingIOError: if another program, or another ledger of this program, has the lock.
      OSError: if the file has another name (a hard link), which would have its own lock.
    """

    def __init__(self, path: str) -> None:
        path = os.path.realpath(path)  # SQLite's journal is also there
        self._paths = (path, f"{path}-wal")
        self._database: sqlite3.Connection | None = None
        self._numbers: list[int] = []
        self._lock = Lock(f"{path}.lock")
        if os.path.exists(path) and os.stat(path).st_nlink > 1:
            self._lock.close()
            raise OSError(
                f"{path} has another name (a hard link), under which another program could "
                f"use it. Nothing was begun or released by this call. Remove one name; "
                f"`find / -samefile {path}` finds them. A backup is a copy, not a link."
            )
        _LOCKS.add(self)

    def watch(self, database: sqlite3.Connection) -> None:
        """Records the files that this connection has open, for `check`."""
        self._database, self._numbers = database, self._file_numbers()

    def check(self) -> None:
        """Raises OSError unless the files of the connection are still in place."""
        try:
            is_same = self._file_numbers() == self._numbers
        except FileNotFoundError:
            is_same = False
        if not is_same:
            raise OSError(
                f"{self._paths[0]} or its journal was deleted, moved or replaced while "
                f"the program ran, so new entries would be lost. Nothing was begun or "
                f"released by this call. Restore the run's newest files, and start again."
            )

    def close(self) -> None:
        """Ends the lock."""
        self._lock.close()
        self._database = None

    def leave(self) -> None:
        """Leaves connection and lock to the parent, in a forked process."""
        if self._database is not None:
            # This reference ensures that the connection is never freed, and therefore never
            # closed.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._database))
        self._database = None

    def _file_numbers(self) -> list[int]:
        # The inode number of an open file does not change.
        return [os.stat(path).st_ino for path in self._paths]


_LOCKS: weakref.WeakSet[LedgerLock] = weakref.WeakSet()
os.register_at_fork(after_in_child=lambda: [*map(LedgerLock.leave, [*_LOCKS])])
