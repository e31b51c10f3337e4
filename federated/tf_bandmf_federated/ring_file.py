"""The ring buffer of the noise on disk: a restart reads it instead of making it again.

A cache. Each update of the buffer is one slot of the file, written over the oldest one, of
which no row of noise depends any more. A slot has a SHA-256 over what it is (key, round)
and what it holds: one that is torn, damaged, of another key or of another round does not
count, and what is missing is made again from the key. So no order of writes and no lost
write can make noise wrong.

The file is as secret as the key: who knows the noise of a round has the exact sum of its
updates. Mode 0600.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import os
from collections.abc import Callable

import numpy as np

from tf_bandmf.files import private as private_files
from tf_bandmf_federated.large_vectors import ahead

_STEP_BYTES, _DIGEST_BYTES, _HEAD_BYTES = 8, 32, 64
# Slots more than the buffer needs: the last update may be torn, and the saved state that
# a program goes on from may be a round behind.
_SPARE = 2


class RingFile:
    """The last updates of a ring buffer.

    Args:
      path: of the file; it is created when something is written.
      num_updates: updates after which every row of the buffer was written.
      shape: of an update, [rows, d].

    Attributes:
      num_updates: as above.

    Raises:
      PermissionError: if others than the owner may read the file.
    """

    def __init__(self, path: str, num_updates: int, shape: tuple[int, int]) -> None:
        if os.path.exists(path):
            private_files.check_mode(path)
        self._path = path
        self.num_updates = num_updates
        self._shape = shape
        self._writer = concurrent.futures.ThreadPoolExecutor(1)
        self._writing: concurrent.futures.Future[None] | None = None

    def put(self, key_id: int, step: int, update: np.ndarray) -> None:
        """Writes the update of a step; the next call waits until it reached the disk.

        Raises:
          OSError: what the write before this one raised.
        """
        self.flush()
        self._writing = self._writer.submit(self._put, key_id, step, update)

    def flush(self) -> None:
        """Waits for what is being written.

        Raises:
          OSError: what the write raised.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def load(
        self,
        key_id: Callable[[int], int],
        end: int,
        apply: Callable[[int, np.ndarray], None],
    ) -> int:
        """Reads the buffer as it is before step `end`, or a step before that.

        Args:
          key_id: of each step, as it was given to `put`.
          end: no update of this step or a later one is wanted.
          apply: takes step and update, in the order of the steps.

        Returns:
          The step before which the buffer is now. 0 if there is nothing to go on from:
          what was applied does not count then.
        """
        self.flush()
        if not os.path.exists(self._path):
            return 0
        with open(self._path, "rb") as file:
            last = self._last_whole(file.fileno(), key_id, end)
            wanted = range(max(0, last - self.num_updates + 1), last + 1)

            def read(step: int) -> np.ndarray | None:
                return self._read(file.fileno(), key_id(step), step)

            # A few at a time: all of them may be many gigabytes.
            with contextlib.closing(ahead(read, wanted)) as updates:
                for step, update in zip(wanted, updates):
                    if update is None:
                        return 0
                    apply(step, update)
        return last + 1

    def _last_whole(
        self, descriptor: int, key_id: Callable[[int], int], end: int
    ) -> int:
        """The last step before `end` whose update is whole, or -1."""
        for step in range(end - 1, max(-1, end - 1 - _SPARE), -1):
            if self._read(descriptor, key_id(step), step) is not None:
                return step
        return -1

    def _put(self, key_id: int, step: int, update: np.ndarray) -> None:
        content = np.ascontiguousarray(update, np.float32)
        head = step.to_bytes(_STEP_BYTES, "little") + _digest(key_id, step, content)
        flags = os.O_WRONLY | os.O_CREAT
        with os.fdopen(os.open(self._path, flags, 0o600), "wb", buffering=0) as file:
            file.seek(self._offset(step))
            file.write(head.ljust(_HEAD_BYTES, b"\0"))
            file.write(content.data)
            os.fdatasync(file.fileno())

    def _read(self, descriptor: int, key_id: int, step: int) -> np.ndarray | None:
        """The update of a step, if it is there and whole."""
        offset = self._offset(step)
        head = os.pread(descriptor, _HEAD_BYTES, offset)
        if head[:_STEP_BYTES] != step.to_bytes(_STEP_BYTES, "little"):
            return None
        update = np.empty(self._shape, np.float32)
        read = os.preadv(descriptor, [update.data.cast("B")], offset + _HEAD_BYTES)
        digest = head[_STEP_BYTES : _STEP_BYTES + _DIGEST_BYTES]
        if read != update.nbytes or digest != _digest(key_id, step, update):
            return None
        return update

    def _offset(self, step: int) -> int:
        slot_bytes = _HEAD_BYTES + 4 * self._shape[0] * self._shape[1]
        return step % (self.num_updates + _SPARE) * slot_bytes


def _digest(key_id: int, step: int, update: np.ndarray) -> bytes:
    # hashlib and the disk let other threads run.
    found = hashlib.sha256(b"%d %d %r " % (key_id, step, update.shape))
    found.update(update.data)
    return found.digest()
