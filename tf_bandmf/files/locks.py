"""Locks: a file is used by one process at a time; the end of the process ends it."""

from __future__ import annotations

import errno
import os
import threading
import weakref

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

# By process and name: what a process forks does not hold its locks.
_HELD: weakref.WeakValueDictionary[tuple[int, str], Lock]
_HELD = weakref.WeakValueDictionary()
_GUARD = threading.Lock()


class Lock:
    """Held as long as the object is there; see `hold`."""

    def __init__(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            # The process's lock: neither inherited by what it forks, nor left by a kill.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise BlockingIOError(error.errno, "locked") from error
            raise
        weakref.finalize(self, os.close, descriptor)


def hold(path: str) -> Lock | None:
    """Locks what is at `path` for this process, by a file `path`.lock beside it.

    Objects of one process share the lock. There is none on Windows.

    Returns:
      What holds the lock as long as it is referred to.

    Raises:
      BlockingIOError: if another process holds it.
      OSError: if the file system has no locks.
    """
    if fcntl is None:
        return None
    name = os.path.realpath(path) + ".lock"
    with _GUARD:
        held = _HELD.get((os.getpid(), name))
        if held is None:
            try:
                held = Lock(name)
            except BlockingIOError as error:
                raise BlockingIOError(
                    f"Another process uses {path} (its lock is {name}). End that one "
                    f"first, or wait until it has ended."
                ) from error
            _HELD[os.getpid(), name] = held
        return held
