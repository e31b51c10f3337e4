"""Says what takes long before training begins."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

PATIENCE = 2.0


@contextlib.contextmanager
def announced(what: str, quiet: bool = False) -> Iterator[None]:
    """Prints what is being done to the standard error, if it takes over two seconds.

    Args:
      what: a sentence.
      quiet: prints nothing.
    """
    if quiet:
        yield
        return

    def say() -> None:
        print(f"tf_bandmf: {what}", file=sys.stderr, flush=True)

    timer = threading.Timer(PATIENCE, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
