"""A private file that consists of a base record and appended entries.

    length of the base record | base record, padded | SHA-256 of both | entries

The base record can only be replaced as a whole. An entry has 32 bytes: 16 bytes from the
caller, and their digest. The key of the digest is the SHA-256 hash above. Each entry
starts at a multiple of 32 bytes, so it lies within one disk sector: if the machine
stops while an entry is being written, the file ends with part of the entry or with
zeros. Reading the file removes an incomplete last entry; any other entry with a wrong
digest raises an error.

An appended entry survives the end of the process. If the machine fails, the entries
since the last disk sync may be lost. Syncs take at most one percent of the run time:
after each sync, no entry is synced for 100 times as long as the sync took.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from functools import partial

from tf_bandmf.files import private
from tf_bandmf.files.hidden import HiddenBytes

ENTRY_BYTES = 16
_PLACE = 32
# The maximum share of the run time that disk syncs may take.
_SYNC_SHARE = 0.01


class Journal:
    """A private file with appended entries; only one process at a time may use it.

    Args:
      path: path of the file, which has mode 0600.
    """

    def __init__(self, path: str) -> None:
        self._path, self._key = path, b""
        self._next_sync, self._lock = 0.0, threading.Lock()

    def replace(self, content: bytes) -> None:
        """Atomically replaces the file with a base record `content` and no entries."""
        length = len(content).to_bytes(_PLACE, "little")
        padded = HiddenBytes(length + content + bytes(-len(content) % _PLACE))
        key, opener = hashlib.sha256(padded).digest(), partial(os.open, mode=0o600)
        with self._lock:
            with private.replaced(self._path) as unfinished:
                with open(unfinished, "wb", opener=opener) as file:
                    file.writelines([padded, key])
            self._key = key

    def read(self) -> tuple[HiddenBytes, list[HiddenBytes]]:
        """Returns the base record and the entries, and removes an incomplete last entry.

        Raises:
          FileNotFoundError: if the file does not exist.
          PermissionError: if anyone but the owner may read or write the file.
          ValueError: if the file is damaged or is not a journal.
        """
        private.check_mode(self._path)
        with open(self._path, "rb") as file:
            whole = HiddenBytes(file.read())
        length = int.from_bytes(whole[:_PLACE], "little")
        end = _PLACE + length + -length % _PLACE
        self._key = hashlib.sha256(whole[:end]).digest()
        if whole[end : end + _PLACE] != self._key:
            raise ValueError(
                f"{self._path} is damaged, or was not written by tf-bandmf."
            )
        entries = []
        for place in range(end + _PLACE, len(whole), _PLACE):
            entry = HiddenBytes(whole[place : place + ENTRY_BYTES])
            if whole[place : place + _PLACE] != self._marked(entry):
                if len(whole) - place >= _PLACE and any(whole[place:]):
                    raise ValueError(f"{self._path} is damaged: a checksum is wrong.")
                os.truncate(self._path, place)
                break
            entries.append(entry)
        return HiddenBytes(whole[_PLACE : _PLACE + length]), entries

    def append(self, entry: bytes) -> None:
        """Appends an entry of `ENTRY_BYTES` bytes; call `read` or `replace` first."""
        marked = self._marked(entry)
        with self._lock, open(self._path, "r+b", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            if os.write(file.fileno(), marked) != len(marked):
                file.truncate(size)
                raise OSError(f"{self._path} could not be written: the disk is full.")
            began = time.perf_counter()
            if began >= self._next_sync:
                # macOS has no fdatasync.
                getattr(os, "fdatasync", os.fsync)(file.fileno())
                now = time.perf_counter()
                self._next_sync = now + (now - began) / _SYNC_SHARE

    def _marked(self, entry: bytes) -> HiddenBytes:
        size = _PLACE - ENTRY_BYTES
        digest = hashlib.blake2b(entry, digest_size=size, key=self._key).digest()
        return HiddenBytes(entry + digest)

    def __repr__(self) -> str:
        return "Journal(<secret>)"
