"""Runs a process on several machines: TFF's workers, with time limits.

    # on each of the machines, in the environment of requirements.txt:
    #   worker_binary --port=8000        (README.md: who may reach this port)
    with tf_bandmf_federated.remote_context(["10.8.0.2:8000", "10.8.0.3:8000"]):
        state = process.initialize()
        output = process.next(process.prepare(state), data)

Clients are divided between the workers, which train and add up their clients; one
worker merges the sums and adds the noise, once. Sums are of floats: with another number
of workers they differ in the last bits. The noise does not.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import re
import threading
import time
from collections.abc import Sequence
from typing import Any

import tensorflow_federated as tff

from tf_bandmf_federated.worker_connection import (
    DEADLINE,
    WorkerConnection,
    WorkersUnavailable,
    answers,
)
from tf_bandmf_federated.workers import LocalWorkers

# A name, an IPv4 address, or an IPv6 address in brackets; and a port.
_ADDRESS = re.compile(r"(?P<host>\[[0-9a-fA-F:.%\w]+\]|[^\s\[\]:/]+):(?P<port>\d{1,5})")


class RemoteContext(tff.framework.SyncContext):
    """A TFF context that computes on workers; make it with `remote_context`.

    Enter it (`with context:`, at whose end it is closed) or make it the default of this
    thread (`tff.framework.set_default_context(context)`).

    Attributes:
      addresses: addresses of the workers.
      time_limit_seconds: time limit of a whole call, such as `process.next`; infinity
        for none.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        time_limit_seconds: float,
        reconnect_seconds: float,
        workers: LocalWorkers | None = None,
    ) -> None:
        _check_seconds("time_limit_seconds", time_limit_seconds)
        _check_seconds("reconnect_seconds", reconnect_seconds)
        self.addresses = tuple(addresses)
        self.time_limit_seconds = float(time_limit_seconds)
        self._workers = workers  # they live as long as what computes on them
        self._connections = [
            WorkerConnection(
                address, reconnect_seconds, functools.partial(self._given_up, address)
            )
            for address in self.addresses
        ]
        self._entered = contextlib.ExitStack()
        self._is_closed = False
        self._merging = None
        if len(self._connections) > 1:
            self._merging = tff.backends.native.create_mergeable_comp_execution_context(
                self._connections
            )

    def invoke(self, comp: Any, arg: Any) -> Any:
        """The result of a computation; TFF calls it.

        Raises:
          WorkersUnavailable: if the result is not available within the time limit, or a
            worker is gone.
          ValueError: after `close`.
        """
        if self._is_closed:
            raise ValueError(
                "This context is closed, as it is after its `with` block. Make a new one."
            )
        token = DEADLINE.set(time.monotonic() + self.time_limit_seconds)
        try:
            if self._merging is not None:
                return self._merging.invoke(comp, arg)
            return self._connections[0].compute(comp, arg)
        finally:
            DEADLINE.reset(token)

    def for_programs(self) -> tff.program.NativeFederatedContext:
        """This context for TFF's programs, such as `tff.learning.programs.train_model`.

        Make it the default: `tff.framework.set_default_context(context.for_programs())`.
        """
        return tff.program.NativeFederatedContext(_Asynchronous(self))

    def silent_workers(self, timeout_seconds: float = 5.0) -> list[str]:
        """Addresses at which no worker answers now."""
        return [a for a in self.addresses if not answers(a, timeout_seconds)]

    def close(self) -> None:
        """Ends the connections, and the workers if this context started them."""
        self._is_closed = True
        for connection in self._connections:
            connection.close()
        if self._workers is not None:
            self._workers.close()

    def __enter__(self) -> RemoteContext:
        stack = tff.framework.get_context_stack()
        self._entered.enter_context(stack.install(self))
        return self

    def __exit__(self, *_: Any) -> None:
        self._entered.close()
        self.close()

    def _given_up(self, address: str, what: str) -> WorkersUnavailable:
        silent = self.silent_workers()
        found = "All workers answer now: the computation may need longer."
        if silent:
            found = f"No worker answers now at {', '.join(silent)}."
        return WorkersUnavailable(
            f"The worker at {address} {what} (time_limit_seconds="
            f"{self.time_limit_seconds:g} for a call). {found} This call has no "
            f"result. Start the worker again, or give more time; then make the same "
            f"call with the same state and the same data, or pass over the round with "
            f"skip_round."
        )


class _Asynchronous(tff.framework.AsyncContext):
    """A `RemoteContext` that is waited for without blocking."""

    def __init__(self, context: RemoteContext) -> None:
        self._context = context

    async def invoke(self, comp: Any, arg: Any) -> Any:
        if asyncio.iscoroutine(arg):
            arg = await arg
        done: concurrent.futures.Future = concurrent.futures.Future()
        done.set_running_or_notify_cancel()  # it cannot be cancelled any more

        def compute() -> None:
            try:
                done.set_result(self._context.invoke(comp, arg))
            except BaseException as error:
                done.set_exception(error)

        # No thread of asyncio's pool: Python's exit would wait for it.
        threading.Thread(target=compute, name="TFF computation", daemon=True).start()
        return await asyncio.wrap_future(done)


def remote_context(
    addresses: Sequence[str],
    *,
    time_limit_seconds: float = 600.0,
    reconnect_seconds: float = 60.0,
    connect_seconds: float = 30.0,
) -> RemoteContext:
    """A context that computes on TFF's workers at these addresses.

    Args:
      addresses: "host:port" of each worker; IPv6 as "[::1]:8000". With fewer clients
        than workers, some workers stay idle.
      time_limit_seconds: time limit of one call, `initialize` or `next`, including
        compilation in the first call; > 0, float("inf") for none. TFF itself would try
        forever.
      reconnect_seconds: how long a worker may be gone during a call. A worker that is
        restarted within this time is used again, and repeats its part.
      connect_seconds: how long to wait for all workers to answer now.

    Returns:
      A `RemoteContext`, to be entered or made TFF's default.

    Raises:
      TypeError: if addresses is not a sequence of strings.
      ValueError: if it is empty, has an address twice or a wrong one, or if a number of
        seconds is not > 0.
      WorkersUnavailable: if a worker does not answer; it says which.
    """
    checked = _checked_addresses(addresses)
    _check_seconds("connect_seconds", connect_seconds)
    context = RemoteContext(checked, time_limit_seconds, reconnect_seconds)
    give_up = time.monotonic() + connect_seconds
    silent = [
        address
        for address in checked
        if not answers(address, max(give_up - time.monotonic(), 1.0))
    ]
    if silent:
        context.close()
        raise WorkersUnavailable(
            f"No TFF worker answers at {', '.join(silent)} (waited "
            f"{connect_seconds:g} s). Is `worker_binary --port=...` running there, of "
            f"the same version of TFF, and may this machine reach its port?"
        )
    return context


def use_local_workers(
    count: int = 1, *, time_limit_seconds: float = float("inf")
) -> RemoteContext:
    """Makes this thread compute on its own workers, which never outlive the program.

    They replace TFF's default worker, which survives Python and keeps its output open.
    Call this once, at the beginning.

    Args:
      count: number of workers; one already uses all processor cores.
      time_limit_seconds: as for `remote_context`.

    Returns:
      The context, which is now TFF's default. If a worker ends (out of memory, for
      example), the running call raises an error after 10 seconds.

    Raises:
      TypeError, ValueError: if count or limit is wrong.
      WorkersUnavailable: if a worker does not start.
    """
    _check_seconds("time_limit_seconds", time_limit_seconds)  # before any worker starts
    workers = LocalWorkers(count)
    context = RemoteContext(workers.addresses, time_limit_seconds, 10.0, workers)
    tff.framework.set_default_context(context)
    return context


def _check_seconds(name: str, seconds: float) -> None:
    if not float(seconds) > 0.0:
        raise ValueError(f"{name} must be > 0, found {seconds!r}.")


def _checked_addresses(addresses: Sequence[str]) -> list[str]:
    if isinstance(addresses, str) or not isinstance(addresses, Sequence):
        raise TypeError(
            f'addresses must be a list such as ["10.8.0.2:8000", "10.8.0.3:8000"], '
            f"found {addresses!r}."
        )
    if not addresses:
        raise ValueError("addresses is empty: without a worker nothing is computed.")
    seen: set[str] = set()
    for address in addresses:
        if not isinstance(address, str):
            raise TypeError(f"An address must be a string, found {address!r}.")
        match = _ADDRESS.fullmatch(address)
        if match is None or not 1 <= int(match["port"]) <= 65535:
            raise ValueError(
                f'An address must be "host:port", as "10.8.0.2:8000" or "[::1]:8000", '
                f"found {address!r}."
            )
        same = f"{match['host'].lower()}:{int(match['port'])}"
        if same in seen:
            raise ValueError(
                f"addresses has {address!r} twice: one worker would compute two parts, "
                f"one after the other."
            )
        seen.add(same)
    return list(addresses)
