"""Locks that give one process exclusive use of a file; they end with the process."""

from __future__ import annotations

import fcntl
import os
import threading
import weakref

# The locks of this process, keyed by the path of the lock file.
_LOCKS: weakref.WeakValueDictionary[str, Lock] = weakref.WeakValueDictionary()
_GUARD = threading.Lock()


class Lock:
    """A file lock that is released when the object is closed or garbage-collected.

    A forked process does not inherit the lock.

    Args:
      path: path of the lock file, which is created if it does not exist.

    Raises:
      BlockingIOError: if another object, in this or another process, has the lock.
      OSError: if the file system does not support locks.
    """

    def __init__(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            # With `lockf`, a process would lose its lock when it closes any descriptor of
            # the file, for example after copying the file.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        self.close = weakref.finalize(self, os.close, descriptor)
        _LOCKS[path] = self


def hold(path: str) -> Lock:
    """Locks a file for this process, with a lock file `<path>.lock`.

    All callers in this process share the lock.

    Returns:
      The lock, which lasts as long as the returned object is referenced.

    Raises:
      BlockingIOError: if another process has locked the file.
      OSError: if the file system does not support locks.
    """
    name = os.path.realpath(path) + ".lock"
    with _GUARD:
        held = _LOCKS.get(name)
        try:
            # In a forked process, `held` may be a closed lock of the parent process.
            return held if held is not None and held.close.alive else Lock(name)
        except BlockingIOError as error:
            raise BlockingIOError(
                f"Another process uses {path} (the lock file is {name}). End that "
                f"process, or wait until it has ended."
            ) from error


# A forked process inherits the file descriptors of locks. It must close them, because
# they would keep the files locked.
os.register_at_fork(
    after_in_child=lambda: [lock.close() for lock in list(_LOCKS.values())]
)
