"""Files that others write under a name: whole or not there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from tf_bandmf.files.private import sync_folder

_UNFINISHED = ".unfinished-"


@contextlib.contextmanager
def replaced(path: str | os.PathLike[str]) -> Iterator[str]:
    """A path to write a file to, which takes the name `path` when the block ends.

    It is in the same folder and has the same ending. If the block raises, or the process
    is killed, what was at `path` stays.
    """
    folder, name = os.path.split(os.path.abspath(path))
    unfinished = os.path.join(folder, _UNFINISHED + name)
    try:
        yield unfinished
        descriptor = os.open(unfinished, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise
    sync_folder(folder)
