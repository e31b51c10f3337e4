"""A private file that grows: content that is replaced as a whole, and entries after it.

    SHA-256 of head and content | length of the content | content, padded | entries

An entry has 32 bytes: 16 of the caller, and a digest of them that the SHA-256 is the key
of. It begins at a multiple of 32, and so lies within one sector of a disk: a machine that
stops while it is written leaves a part of it that ends with the file, or zeros. Such an end
is no entry; whatever else does not have its digest is damaged.

Entries survive the process at once. They are synced to the disk as often as it costs one
percent of the time: a machine that stops may lose what was appended in the last hundredfold
of the time that a sync takes, a fraction of a second on a local disk.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time

from tf_bandmf.files import private
from tf_bandmf.files.hidden import HiddenBytes

ENTRY_BYTES = 16
_DIGEST_BYTES, _PLACE = 32, 32
# Syncs take at most this share of the time.
_SYNC_SHARE = 0.01
_sync = getattr(os, "fdatasync", os.fsync)


class Journal:
    """A private file with entries; one process at a time may use it.

    Args:
      path: of the file: mode 0600.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._key = b""
        self._descriptor: int | None = None
        self._next_sync = 0.0
        self._lock = threading.Lock()

    def replace(self, content: bytes) -> None:
        """Writes the file anew, with this content and no entries; whole or not at all."""
        head = len(content).to_bytes(_PLACE, "little")
        padded = HiddenBytes(head + content + bytes(-len(content) % _PLACE))
        with self._lock:
            self._close()
            private.write(self._path, padded)
            self._key = hashlib.sha256(padded).digest()

    def read(self) -> tuple[HiddenBytes, list[HiddenBytes]]:
        """The content, and the entries in their order; removes a part of one at the end.

        Raises:
          FileNotFoundError: if there is no file.
          PermissionError: if others than the owner may read or write it.
          ValueError: if it is damaged, or no such file.
        """
        private.check_mode(self._path)
        with open(self._path, "rb") as file:
            self._key, rest = file.read(_DIGEST_BYTES), HiddenBytes(file.read())
        length = int.from_bytes(rest[:_PLACE], "little")
        end = _PLACE + length + -length % _PLACE
        if hashlib.sha256(rest[:end]).digest() != self._key or end > len(rest):
            raise ValueError(
                f"{self._path} is damaged, or no private file of this kind."
            )
        entries = []
        for place in range(end, len(rest), _PLACE):
            entry = HiddenBytes(rest[place : place + ENTRY_BYTES])
            if rest[place : place + _PLACE] != self._marked(entry):
                tail = rest[place:]
                if len(tail) >= _PLACE and any(tail):
                    raise ValueError(f"{self._path} is damaged after its content.")
                os.truncate(self._path, _DIGEST_BYTES + place)
                break
            entries.append(entry)
        return HiddenBytes(rest[_PLACE : _PLACE + length]), entries

    def append(self, entry: bytes) -> None:
        """Appends an entry of `ENTRY_BYTES` to the file that was read or replaced."""
        with self._lock:
            if self._descriptor is None:
                self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND)
            marked = self._marked(entry)
            written = os.write(self._descriptor, marked)
            if written != len(marked):
                size = os.fstat(self._descriptor).st_size
                os.ftruncate(self._descriptor, size - written)
                raise OSError(f"{self._path} could not be written: the disk is full.")
            began = time.perf_counter()
            if began >= self._next_sync:
                _sync(self._descriptor)
                now = time.perf_counter()
                self._next_sync = now + (now - began) / _SYNC_SHARE

    def _marked(self, entry: bytes) -> HiddenBytes:
        size = _PLACE - ENTRY_BYTES
        return HiddenBytes(
            entry + hashlib.blake2b(entry, digest_size=size, key=self._key).digest()
        )

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        self._close()

    def __repr__(self) -> str:
        return "Journal(<secret>)"
