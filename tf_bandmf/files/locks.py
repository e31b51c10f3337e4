"""Locks for the exclusive use of a file by one process, which end with the process."""

from __future__ import annotations

import fcntl
import os
import threading
import weakref

# The locks that this process holds, keyed by the path of the lock file.
_LOCKS: weakref.WeakValueDictionary[str, Lock] = weakref.WeakValueDictionary()
_GUARD = threading.Lock()


class Lock:
    """A file lock that ends when the object is closed or garbage-collected.

    Args:
      path: path of the lock file, which is created if it does not exist. A forked
        process does not inherit the lock.

    Raises:
      BlockingIOError: if another object, in this or another process, holds the lock.
      OSError: if the file system has no locks.
    """

    def __init__(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            # `lockf` is not used, because a process loses its lock when the process
            # closes any descriptor of the file, for example after copying the file. The
            # lock of `flock` also ends if the process is killed.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        self.close = weakref.finalize(self, os.close, descriptor)
        _LOCKS[path] = self


def hold(path: str) -> Lock:
    """Locks `path` for this process, with a lock file `<path>.lock`.

    All callers in this process share the lock.

    Returns:
      The lock, which is held as long as the returned object is referenced.

    Raises:
      BlockingIOError: if another process holds the lock.
      OSError: if the file system has no locks.
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


# A forked process closes the file descriptors of locks that it inherited; otherwise,
# these copies would keep the files locked.
os.register_at_fork(
    after_in_child=lambda: [lock.close() for lock in list(_LOCKS.values())]
)
