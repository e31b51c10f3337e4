"""Writes files atomically, and checks the mode of private files."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator


@contextlib.contextmanager
def replaced(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yields a temporary path; the file written there finally replaces `path` atomically.

    The temporary file is in the same folder and has the same suffix. The contents are
    fsynced before the rename, and the folder after the rename: after a crash, `path` is
    either the old or the new file. If the block raises, or the process is killed, the
    old file at `path` remains.
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
    """Fsyncs a file, or a folder, so that a rename in it survives a crash."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_unfinished(path: str) -> None:
    """Removes the unfinished file that a killed process may have left."""
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
            f"{path} holds the secrets of a run, but others may read it (mode {mode:o}). "
            f"If nobody has read it: chmod 600 {path}."
        )
