"""A lock that lets only one program at a time use a ledger.

SQLite uses POSIX locks, which a process loses when it closes any descriptor of the
locked file, for example after copying the file. Therefore this module locks a second
file. It also handles forks. Otherwise a forked process would close its copy of the
connection on exit, and thereby remove the journal that the parent process still writes.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
import weakref

from tf_bandmf.files.locks import Lock


class LedgerLock:
    """Locks `<path>.lock`, and checks that the ledger's files stay in place.

    Args:
      path: path of the ledger.

    Attributes:
      database: the connection, which the ledger sets. It is None after the connection
        is closed, and in a forked process.

    Raises:
      BlockingIOError: if another program, or another ledger object of this program, has
        the lock.
      OSError: if the file has a second name (a hard link), because each name would have
        its own lock.
    """

    def __init__(self, path: str) -> None:
        # SQLite follows symbolic links, and creates the journal beside the real file.
        path = os.path.realpath(path)
        self._paths = (path, f"{path}-wal")
        self.database: sqlite3.Connection | None = None
        self._numbers: list[int] = []
        self._lock = Lock(f"{path}.lock")
        if os.path.exists(path) and os.stat(path).st_nlink > 1:
            self._lock.close()
            raise OSError(
                f"{path} has a second name (a hard link), by which another program could "
                f"open the file. Find all names with `find / -samefile {path}`, and "
                f"delete all but one name. For a backup, make a copy, not a link."
            )
        _LOCKS.add(self)

    def watch(self) -> None:
        """Records which files the connection has open, so that `check` can compare."""
        self._numbers = self._file_numbers()

    def check(self) -> None:
        """Raises OSError if the ledger or its journal was deleted, moved or replaced."""
        try:
            is_same = self._file_numbers() == self._numbers
        except FileNotFoundError:
            is_same = False
        if not is_same:
            raise OSError(
                f"{self._paths[0]} or its journal was deleted, moved or replaced while "
                f"the program ran, so new entries would be lost. This call did not begin "
                f"a round or release anything. Restore the newest files and continue."
            )

    def close(self) -> None:
        """Closes the lock and, except in a forked process, the connection."""
        if self.database is not None:
            self.database.close()
            self.database = None
        self._lock.close()

    def leave(self) -> None:
        """Drops a forked process's copy of the connection, without closing it."""
        if self.database is not None:
            # The additional reference keeps Python from freeing the connection, which
            # would close it.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.database))
        self.database = None

    def _file_numbers(self) -> list[int]:
        # If a file is replaced, its path gets a new inode number.
        return [os.stat(path).st_ino for path in self._paths]


_LOCKS: weakref.WeakSet[LedgerLock] = weakref.WeakSet()
os.register_at_fork(after_in_child=lambda: [*map(LedgerLock.leave, [*_LOCKS])])
