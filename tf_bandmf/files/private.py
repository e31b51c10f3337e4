"""Files that hold secrets: only the owner reads them, and they are whole or not there."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import stat
import tempfile
import threading
from collections.abc import Iterator
from typing import Any, BinaryIO

from tf_bandmf.files.hidden import HiddenBytes

_DIGEST_BYTES = 32
_UNFINISHED = ".private-"
_LARGE = 1 << 20  # bytes that are hashed while they are written


@contextlib.contextmanager
def replaced(path: str) -> Iterator[BinaryIO]:
    """A file to write to, which takes the name `path` when the block ends.

    Mode 0600. Contents are fsynced before the rename, and the rename before this
    returns: after a crash there is the old file or the new one. If the block raises, the
    old one stays.
    """
    folder = os.path.dirname(os.path.abspath(path))
    # mkstemp gives mode 0600.
    prefix = f"{_UNFINISHED}{os.path.basename(path)}-"
    descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=prefix)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    sync_folder(folder)


def sync_folder(folder: str) -> None:
    """Fsyncs a folder: a rename in it survives a crash."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_unfinished(folder: str, name: str = "") -> None:
    """Removes what a killed process left of files that it had not finished.

    Args:
      folder: where they are.
      name: of the file, if only what was left of this one is to go.
    """
    prefix = f"{_UNFINISHED}{name}-" if name else _UNFINISHED
    for found in os.listdir(folder):
        if found.startswith(prefix):
            os.unlink(os.path.join(folder, found))


class _Hashed(io.RawIOBase):
    """What is written goes on to a file and into a hash; nothing is written twice."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.found = file, hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        size = memoryview(content).nbytes
        if size < _LARGE:
            self.found.update(content)
            self._file.write(content)
            return size
        # Neither of the two holds Python's lock.
        hashing = threading.Thread(target=self.found.update, args=(content,))
        hashing.start()
        try:
            self._file.write(content)
        finally:
            hashing.join()
        return size


@contextlib.contextmanager
def written(path: str) -> Iterator[BinaryIO]:
    """As `write`, for large contents: they are written in pieces, one after the other."""
    with replaced(path) as file:
        file.write(bytes(_DIGEST_BYTES))
        content = _Hashed(file)
        yield content  # type: ignore[misc]
        file.seek(0)
        file.write(content.found.digest())


def write(path: str, content: bytes | memoryview) -> None:
    """Writes a private file with a SHA-256 of its content, as `replaced` does."""
    if type(content) is bytes:
        content = HiddenBytes(content)
    with written(path) as file:
        file.write(content)


def read(path: str) -> bytes:
    """The content of a file that `write` wrote.

    Raises:
      FileNotFoundError: if there is none.
      PermissionError: if others than the owner may read or write it.
      ValueError: if it is damaged, or no such file.
    """
    check_mode(path)
    with open(path, "rb") as file:
        digest, content = file.read(_DIGEST_BYTES), HiddenBytes(file.read())
    if hashlib.sha256(content).digest() != digest:
        raise ValueError(
            f"{path} does not have the SHA-256 that it states: it is damaged, or was not "
            f"written by tf-bandmf."
        )
    return content


def check_mode(path: str) -> None:
    """Raises PermissionError if others than the owner may read or write the file."""
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if os.name == "posix" and mode & 0o077:
        raise PermissionError(
            f"{path} holds the secrets of a run, but others may read it (mode {mode:o}). "
            f"If nobody did: chmod 600 {path}."
        )
