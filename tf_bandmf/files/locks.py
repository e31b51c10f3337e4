"""Locks: a file is used by one process at a time; the end of the process ends it."""

from __future__ import annotations

import fcntl
import os
import threading
import weakref

# By the path of their file.
_LOCKS: weakref.WeakValueDictionary[str, Lock] = weakref.WeakValueDictionary()
_GUARD = threading.Lock()


class Lock:
    """Held until it is closed, or nobody refers to it; what the process forks leaves it.

    Args:
      path: of a file of its own, which is made if it is not there.

    Raises:
      BlockingIOError: if another object holds it, of this process or another.
      OSError: if the file system has no locks.
    """

    def __init__(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            # Not `lockf`: a process loses that lock when it closes any descriptor of the
            # file, such as that of a copy which it makes. A kill ends this one, too.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        self.close = weakref.finalize(self, os.close, descriptor)
        _LOCKS[path] = self


def hold(path: str) -> Lock:
    """Locks what is at `path` for this process, by a file `path`.lock beside it.

    Objects of one process share the lock.

    Returns:
      What holds the lock as long as it is referred to.

    Raises:
      BlockingIOError: if another process holds it.
      OSError: if the file system has no locks.
    """
    name = os.path.realpath(path) + ".lock"
    with _GUARD:
        held = _LOCKS.get(name)
        try:
            # What a process forks has closed its locks.
            return held if held is not None and held.close.alive else Lock(name)
        except BlockingIOError as error:
            raise BlockingIOError(
                f"Another process uses {path} (its lock is {name}). End that one "
                f"first, or wait until it has ended."
            ) from error


# The descriptors of a fork hold the locks as well.
os.register_at_fork(
    after_in_child=lambda: [lock.close() for lock in list(_LOCKS.values())]
)
