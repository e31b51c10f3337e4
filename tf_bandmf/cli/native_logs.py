"""Removes log lines of native code (TensorFlow, XLA, CUDA) from a program's output.

TensorFlow writes logs to file descriptor 2 before a program can set a log level. This
module removes the lines of this output that look like logs below the level "fatal".
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator

_LOG_LINE = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog|[IWE]\d{4} \d\d:\d\d:\d\d"
    rb"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] "
    rb"|To enable the following instructions: .* rebuild TensorFlow"
)


@contextlib.contextmanager
def without_native_logs() -> Iterator[None]:
    """A context manager that drops log lines of native code.

    The environment variable `TF_CPP_MIN_LOG_LEVEL=0` turns the filter off. The output
    of Python code is not filtered.
    """
    if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3") == "0":
        yield
        return
    for name in ("tensorflow", "absl"):
        logging.getLogger(name).setLevel(logging.ERROR)
    terminal, (source, sink) = os.dup(2), os.pipe()
    is_native = sys.stderr is sys.__stderr__
    os.dup2(sink, 2)
    os.close(sink)
    filtering = threading.Thread(target=_pass_on, args=(source, terminal), daemon=True)
    filtering.start()
    ours = open(os.dup(terminal), "w", buffering=1) if is_native else sys.stderr
    try:
        with contextlib.redirect_stderr(ours):
            yield
    finally:
        # This call closes the write end of the pipe, so the thread ends, unless a child
        # process still has the pipe open.
        os.dup2(terminal, 2)
        filtering.join(timeout=1.0)


def drop_native_logs() -> None:
    """Drops native logs until the program ends; call this before TensorFlow loads."""
    block = contextlib.ExitStack()
    block.enter_context(without_native_logs())
    atexit.register(block.close)


def _pass_on(source: int, sink: int) -> None:
    """Copies all lines except native logs, until the pipe's write end is closed.

    Args:
      source: file descriptor of the pipe's read end.
      sink: file descriptor to which the lines are written.
    """
    with os.fdopen(source, "rb") as pipe:
        for line in pipe:
            if not _LOG_LINE.match(line):
                os.write(sink, line)
    os.close(sink)
