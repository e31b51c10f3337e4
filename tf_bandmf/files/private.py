"""Files that are written atomically, and private files with a checksum."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
from collections.abc import Iterator

from tf_bandmf.files.hidden import HiddenBytes

DIGEST_BYTES = 32


@contextlib.contextmanager
def replaced(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yields a temporary path; the file written there is renamed to `path` at the end.

    The temporary file is in the same folder and has the same suffix. Contents are fsynced
    before the rename, and the rename before the block ends: after a crash `path` is either
    the old or the new file. If the block raises, or the process is killed, the old file at
    `path` remains.
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


def write(path: str, content: bytes) -> bytes:
    """Writes a private file, mode 0600, with the content and the content's SHA-256.

    Returns:
      The SHA-256.
    """
    opener = functools.partial(os.open, mode=0o600)
    content = HiddenBytes(content)
    digest = hashlib.sha256(content).digest()
    with replaced(path) as unfinished, open(unfinished, "wb", opener=opener) as file:
        file.writelines([content, digest])
    return digest


def read(path: str) -> bytes:
    """Returns the content of a file that `write` wrote.

    Raises:
      FileNotFoundError: if there is no file.
      PermissionError: if anyone but the owner may read or write it.
      ValueError: if the file is damaged, or was not written by `write`.
    """
    whole = whole_of(path)
    content = HiddenBytes(whole[:-DIGEST_BYTES])
    if hashlib.sha256(content).digest() != whole[-DIGEST_BYTES:]:
        raise ValueError(
            f"The checksum in {path} does not match its content: the file is damaged, or "
            f"was not written by tf-bandmf."
        )
    return content


def whole_of(path: str) -> HiddenBytes:
    """Returns all bytes of a private file, after `check_mode`."""
    check_mode(path)
    with open(path, "rb") as file:
        return HiddenBytes(file.read())


def check_mode(path: str) -> None:
    """Raises PermissionError if anyone but the owner may read or write the file."""
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & 0o077:
        raise PermissionError(
            f"{path} holds the secrets of a run, but others may read it (mode {mode:o}). "
            f"If nobody has read it: chmod 600 {path}."
        )
