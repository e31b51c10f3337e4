"""Files that are whole or not there; and those that hold secrets, with a checksum."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
from collections.abc import Iterator
from typing import BinaryIO

from tf_bandmf.files.hidden import HiddenBytes

DIGEST_BYTES = 32
_UNFINISHED = ".unfinished-"
_BLOCK = 1 << 20


@contextlib.contextmanager
def replaced(path: str | os.PathLike[str]) -> Iterator[str]:
    """A path to write a file to, which takes the name `path` when the block ends.

    It is in the same folder and has the same ending. Contents are fsynced before the
    rename, and the rename before this returns: after a crash there is the old file or the
    new one. If the block raises, or the process is killed, what was at `path` stays.
    """
    folder, name = os.path.split(os.path.abspath(path))
    unfinished = os.path.join(folder, _UNFINISHED + name)
    try:
        yield unfinished
        sync(unfinished)
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise
    sync(folder)


def sync(path: str) -> None:
    """Fsyncs a file, or a folder: a rename in it survives a crash."""
    descriptor = os.open(path, os.O_RDONLY)
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
    for other in os.listdir(folder):
        if other.startswith(_UNFINISHED) and name in ("", other[len(_UNFINISHED) :]):
            os.unlink(os.path.join(folder, other))


@contextlib.contextmanager
def written(path: str) -> Iterator[BinaryIO]:
    """As `write`, for large contents: they are written in pieces, one after the other."""
    opener = functools.partial(os.open, mode=0o600)
    with replaced(path) as unfinished, open(unfinished, "w+b", opener=opener) as file:
        yield file
        file.seek(0)
        digest = hashlib.sha256()
        while block := HiddenBytes(file.read(_BLOCK)):
            digest.update(block)
        file.write(digest.digest())


def write(path: str, content: bytes) -> None:
    """Writes a private file: its content and the SHA-256 of that, mode 0600."""
    with written(path) as file:
        file.write(HiddenBytes(content))


def read(path: str) -> bytes:
    """The content of a file that `write` wrote.

    Raises:
      FileNotFoundError: if there is none.
      PermissionError: if others than the owner may read or write it.
      ValueError: if it is damaged, or no such file.
    """
    whole = whole_of(path)
    content = HiddenBytes(whole[:-DIGEST_BYTES])
    if hashlib.sha256(content).digest() != whole[-DIGEST_BYTES:]:
        raise ValueError(
            f"{path} does not have the SHA-256 that it states: it is damaged, or was not "
            f"written by tf-bandmf."
        )
    return content


def whole_of(path: str) -> HiddenBytes:
    """All bytes of a private file; see `check_mode`."""
    check_mode(path)
    with open(path, "rb") as file:
        return HiddenBytes(file.read())


def check_mode(path: str) -> None:
    """Raises PermissionError if others than the owner may read or write the file."""
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & 0o077:
        raise PermissionError(
            f"{path} holds the secrets of a run, but others may read it (mode {mode:o}). "
            f"If nobody did: chmod 600 {path}."
        )
