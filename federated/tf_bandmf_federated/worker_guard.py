"""Runs a worker that ends with the program that wants it, however that one ends.

    python -I -S worker_guard.py PID_OF_THE_PROGRAM COMMAND...

A program of its own, with the standard library only. It ends the worker when its standard
input ends, which is a pipe that only the program holds; when its parent is another one
than the program; and when it is asked to end. If it is itself killed, Linux ends the
worker. What a dying program cannot do (`kill -9`, out of memory) needs nobody's care.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
from typing import Any, Callable

_PR_SET_PDEATHSIG = 1
_SECONDS_BETWEEN_LOOKS = 0.5


def _end_with_me() -> Callable[[], None] | None:
    """What the worker does before it starts; this program has a single thread."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None, use_errno=True)
    guard = os.getpid()

    def ask() -> None:
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != guard:  # it ended before the line above
            os._exit(1)

    return ask


def _is_wanted(program: int, timeout: float) -> bool:
    if os.getppid() != program:
        return False
    readable, _, _ = select.select([0], [], [], timeout)
    return not readable or bool(os.read(0, 1))


def main(program: int, command: list[str]) -> int:
    """Runs the command until it ends or is not wanted; its exit status."""

    def end(signum: int, frame: Any) -> None:
        raise SystemExit(128 + signum)

    signal.signal(signal.SIGTERM, end)
    worker = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, preexec_fn=_end_with_me()
    )
    try:
        while _is_wanted(program, _SECONDS_BETWEEN_LOOKS):
            if worker.poll() is not None:
                return worker.returncode & 0xFF
    finally:
        worker.kill()  # it has nothing to save
        worker.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
