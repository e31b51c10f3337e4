"""TFF's worker processes on this machine, which never outlive the program.

TFF's own local context starts a worker that survives Python and keeps its standard output
open: `python program.py | tail` then waits for ever. `LocalWorkers` starts the same
program under a guard (`worker_guard`) that ends it with this process, also after
`kill -9`.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from typing import IO, Any

import tensorflow_federated as tff

from tf_bandmf.participation.checks import positive_int
from tf_bandmf_federated import worker_guard
from tf_bandmf_federated.worker_connection import WorkersUnavailable, answers

_SECONDS_TO_START = 60.0
_SECONDS_TO_END = 10.0


class LocalWorkers:
    """Workers on free ports of this machine, for simulation and tests.

        with LocalWorkers(2) as workers:
            with remote_context(workers.addresses):
                ...

    They end with the `with` block, with `close`, when this object is collected, and
    with the program, whatever ends it. Their output goes to an unnamed file; its end is
    part of the error if a worker does not start.

    A worker serves anyone who reaches its port, on all interfaces, without
    authentication: see README.md.

    Args:
      count: how many, >= 1. One of them already uses all processor cores.

    Raises:
      TypeError, ValueError: if count is not an integer >= 1.
      WorkersUnavailable: if one does not start.

    Attributes:
      addresses: "localhost:PORT" of each, as `remote_context` takes them.
    """

    def __init__(self, count: int = 1) -> None:
        count = positive_int("count", count)
        self._workers: list[_Worker] = []
        self._finalizer = weakref.finalize(self, _end, self._workers, os.getpid())
        try:
            for _ in range(count):
                self._workers.append(_Worker())
            for worker in self._workers:
                worker.wait_until_it_answers()
        except BaseException:
            self.close()
            raise

    @property
    def addresses(self) -> list[str]:
        return [worker.address for worker in self._workers]

    def close(self) -> None:
        """Ends the workers; closing twice is harmless."""
        self._finalizer()

    def __enter__(self) -> LocalWorkers:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class _Worker:
    def __init__(self) -> None:
        self._port = _kept_port()
        port = self._port.getsockname()[1]
        self.address = f"localhost:{port}"
        self._log: IO[bytes] = tempfile.TemporaryFile()
        guard = [sys.executable, "-I", "-S", worker_guard.__file__, str(os.getpid())]
        self._guard = subprocess.Popen(
            [*guard, _binary(), f"--port={port}"],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C is for the program to handle
        )

    def wait_until_it_answers(self) -> None:
        give_up = time.monotonic() + _SECONDS_TO_START
        while time.monotonic() < give_up:
            ended = self._guard.poll()
            if ended is not None:
                raise WorkersUnavailable(
                    f"TFF's worker ended with exit status {ended} instead of starting. "
                    f"It wrote: {self._output()}"
                )
            if answers(self.address, timeout_seconds=1.0):
                self._port.close()
                return
        raise WorkersUnavailable(
            f"TFF's worker did not answer on {self.address} within "
            f"{_SECONDS_TO_START:g} s. It wrote: {self._output()}"
        )

    def end(self) -> None:
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        try:
            self._guard.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
        self._log.close()
        self._port.close()

    def _output(self) -> str:
        # pread: the worker writes at the same position.
        size = os.fstat(self._log.fileno()).st_size
        tail = os.pread(self._log.fileno(), 2000, max(0, size - 2000))
        return tail.decode(errors="replace").strip() or "(nothing)"


def _end(workers: list[_Worker], owner: int) -> None:
    if os.getpid() != owner:  # a forked child that exits: they are not its workers
        return
    for worker in workers:
        worker.end()


def _binary() -> str:
    path = os.path.join(os.path.dirname(tff.__file__), "data", "worker_binary")
    if not os.access(path, os.X_OK):
        raise WorkersUnavailable(
            f"There is no program {path}: install tensorflow-federated 0.87 from its "
            f"wheel, which has it."
        )
    return path


def _kept_port() -> socket.socket:
    """A free port, which no other program is given until this socket is closed.

    The worker gets it all the same: gRPC's servers share ports, and this socket does not
    listen.
    """
    kept = socket.socket(socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET)
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    kept.bind(("", 0))
    return kept
