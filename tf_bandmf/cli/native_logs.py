"""Keeps log lines of native code (TensorFlow, XLA, CUDA) from between the lines of ours.

TensorFlow logs to file descriptor 2 before anybody can set a level. What it writes there is
filtered: lines that look like logs below "fatal" are dropped, all others pass.
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

_ERROR_DESCRIPTOR = 2
_LOG_LINE = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog"
    rb"|[IWE]\d{4} \d\d:\d\d:\d\d"
    rb"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] "
    rb"|To enable the following instructions: .* rebuild TensorFlow"
)


@contextlib.contextmanager
def without_native_logs() -> Iterator[None]:
    """Drops log lines of native code while the block runs.

    Does nothing where the environment asks for them: `TF_CPP_MIN_LOG_LEVEL=0`. Python's
    own `sys.stderr` is not filtered.
    """
    wanted = os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if wanted == "0":
        yield
        return
    for name in ("tensorflow", "absl"):
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        terminal = os.dup(_ERROR_DESCRIPTOR)
    except OSError:
        # There is no standard error.
        yield
        return
    python_stderr = sys.stderr
    sys.stderr = _unfiltered(python_stderr, terminal)
    source, sink = os.pipe()
    os.dup2(sink, _ERROR_DESCRIPTOR)
    os.close(sink)
    filtering = threading.Thread(
        target=_pass_on, args=(source, terminal), daemon=True, name="native-logs"
    )
    filtering.start()
    try:
        yield
    finally:
        # The last writer of the pipe leaves: the thread ends, unless a child process
        # holds the other end.
        os.dup2(terminal, _ERROR_DESCRIPTOR)
        filtering.join(timeout=1.0)
        sys.stderr.flush()
        sys.stderr = python_stderr


def drop_native_logs() -> None:
    """`without_native_logs` until the program ends; call it before TensorFlow is loaded."""
    block = contextlib.ExitStack()
    block.enter_context(without_native_logs())
    atexit.register(block.close)


def _unfiltered(stream, terminal: int):  # type: ignore[no-untyped-def]
    """Python's standard error past the filter; whatever else stands there, as it is."""
    try:
        if stream.fileno() != _ERROR_DESCRIPTOR:
            return stream
    except (AttributeError, OSError, ValueError):
        return stream
    stream.flush()
    return os.fdopen(
        os.dup(terminal),
        "w",
        buffering=1,
        encoding=stream.encoding,
        errors=stream.errors,
    )


def _pass_on(source: int, sink: int) -> None:
    """Copies lines that are no logs until the other end is closed."""
    with os.fdopen(source, "rb", buffering=0) as pipe:
        rest = b""
        while block := pipe.read(1 << 16):
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                if not _LOG_LINE.match(line):
                    os.write(sink, line + b"\n")
        if rest and not _LOG_LINE.match(rest):
            os.write(sink, rest)
    os.close(sink)
