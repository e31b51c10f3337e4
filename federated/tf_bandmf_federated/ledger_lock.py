"""A lock that gives one program exclusive use of a ledger, beyond SQLite's own locks.

SQLite uses POSIX locks, which a process loses when it closes any descriptor of the
file, for example after copying the file. Therefore there is a second lock, on a
separate file. In addition, a forked process would close its copy of the connection on
exit, and thereby remove the journal that the parent process still writes.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
import weakref

from tf_bandmf.files.locks import Lock


class LedgerLock:
    """A lock on `<path>.lock`, not kept by forks, and a check that files stay in place.

    Args:
      path: path of the ledger.

    Raises:
      BlockingIOError: if another program, or another ledger object of this program, has
        the lock.
      OSError: if the file has a second name (a hard link), which would have a separate
        lock.
    """

    def __init__(self, path: str) -> None:
        path = os.path.realpath(path)  # SQLite puts its journal there
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
        """Records which files this connection has open, for `check`."""
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
        """Releases the lock."""
        self._lock.close()
        self._database = None

    def leave(self) -> None:
        """In a forked process, leaves connection and lock to the parent process."""
        if self._database is not None:
            # This reference keeps the connection from being freed, and therefore from
            # being closed.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._database))
        self._database = None

    def _file_numbers(self) -> list[int]:
        # An open file keeps its inode number.
        return [os.stat(path).st_ino for path in self._paths]


_LOCKS: weakref.WeakSet[LedgerLock] = weakref.WeakSet()
os.register_at_fork(after_in_child=lambda: [*map(LedgerLock.leave, [*_LOCKS])])
