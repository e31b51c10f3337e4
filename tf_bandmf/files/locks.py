"""Locks that let only one process at a time use a file; a lock ends with its process."""

from __future__ import annotations

import fcntl
import os
import threading
import weakref

# The locks that this process holds, by path of the lock file.
_LOCKS: weakref.WeakValueDictionary[str, Lock] = weakref.WeakValueDictionary()
_GUARD = threading.Lock()


class Lock:
    """A lock, held until it is closed or no longer referenced; forked processes drop it.

    Args:
      path: path of the lock file, which is created if it does not exist.

    Raises:
      BlockingIOError: if another object holds it, in this process or in another.
      OSError: if the file system has no locks.
    """

    def __init__(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            # This is not `lockf`: a process loses such a lock when it closes any descriptor
            # of the file, for example after copying it. A `flock` also ends if the process
            # is killed.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        self.close = weakref.finalize(self, os.close, descriptor)
        _LOCKS[path] = self


def hold(path: str) -> Lock:
    """Locks `path` for this process through a file `<path>.lock` beside it.

    All objects of a process share the lock.

    Returns:
      The lock, which is held as long as the returned object is referenced.

    Raises:
      BlockingIOError: if another process holds it.
      OSError: if the file system has no locks.
    """
    name = os.path.realpath(path) + ".lock"
    with _GUARD:
        held = _LOCKS.get(name)
        try:
            # In a forked process, the locks of its parent are closed.
            return held if held is not None and held.close.alive else Lock(name)
        except BlockingIOError as error:
            raise BlockingIOError(
                f"Another process uses {path} (its lock is {name}). End that process "
                f"first, or wait until it has ended."
            ) from error


# Otherwise the file descriptors that a forked process inherits would also hold the locks.
os.register_at_fork(
    after_in_child=lambda: [lock.close() for lock in list(_LOCKS.values())]
)
