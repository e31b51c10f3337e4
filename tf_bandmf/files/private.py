"""Functions that write files atomically, and check the mode of private files."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator


@contextlib.contextmanager
def replaced(path: str | os.PathLike[str]) -> Iterator[str]:
    """A context manager that replaces a file atomically.

    It yields the path of a temporary file, which the `with` block must write. The
    temporary file is in the same folder as `path`, and has the same suffix. When the
    block ends, the temporary file is fsynced and renamed to `path`, and then the folder
    is fsynced. Therefore, after a crash, `path` is either the old or the new file. If
    the block raises an exception, or the process is killed, the old file remains.
    """
    unfinished = _unfinished(path)
    try:
        yield unfinished
        sync(unfinished)
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise
    sync(os.path.dirname(unfinished))


def sync(path: str) -> None:
    """Fsyncs a file, or a folder (so renames in the folder survive a crash)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_unfinished(path: str) -> None:
    """Removes the temporary file that remains if a process is killed in `replaced`."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_unfinished(path))


def _unfinished(path: str | os.PathLike[str]) -> str:
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(folder, ".unfinished-" + name)


def check_mode(path: str) -> None:
    """Raises PermissionError if anyone but the owner may read or write the file."""
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & 0o077:
        raise PermissionError(
            f"{path} contains the secrets of a run, but its mode {mode:o} gives access to "
            f"other users. If none of them has read the file, run `chmod 600 {path}`."
        )
