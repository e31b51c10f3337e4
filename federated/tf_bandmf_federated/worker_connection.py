"""One of TFF's workers as seen from the program: calls with limits, on its own thread.

TFF's remote executor waits in every call to a worker, inside of the event loop that all
workers share, and tries again for ever if a worker is gone. Here each worker has a thread
with a loop of its own, so that workers compute at the same time; each call has the
deadline of the whole computation; and a worker that is gone for long is given up.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
import time
import weakref
from typing import Any, Callable

import grpc
import tensorflow as tf
import tensorflow_federated as tff
import tree
from tensorflow_federated.proto.v0 import (
    computation_pb2,
    executor_pb2,
    executor_pb2_grpc,
)

# When the computation that runs now must be done: of `time.monotonic`.
DEADLINE: contextvars.ContextVar[float] = contextvars.ContextVar("deadline")

# As TFF's own local context: the limit of protocol buffers.
_MESSAGE_BYTES = 2 * 1000**3
_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", _MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MESSAGE_BYTES),
    # Nobody expects clients' updates to go through the proxy of http_proxy.
    ("grpc.enable_http_proxy", 0),
    # A worker that was started again shall be found soon.
    ("grpc.max_reconnect_backoff_ms", 1000),
)
_SECONDS_TO_DISPOSE = 10.0
_SECONDS_BETWEEN_LOOKS = 0.2
_LATE = "needed longer than the limit"
_PRINTED_BY_TFF = "Trying to serialize\n"  # before a value


class WorkersUnavailable(ConnectionError):
    """Workers do not answer, or not within the time limit."""


def answers(address: str, timeout_seconds: float) -> bool:
    """If a TFF worker answers at an address, "host:port"."""
    nobody = executor_pb2.Cardinality(
        placement=computation_pb2.Placement(uri=tff.CLIENTS.uri), cardinality=0
    )
    with grpc.insecure_channel(address, _CHANNEL_OPTIONS) as channel:
        stub = executor_pb2_grpc.ExecutorGroupStub(channel)
        try:
            found = stub.GetExecutor(
                executor_pb2.GetExecutorRequest(cardinalities=[nobody]),
                timeout=timeout_seconds,
                wait_for_ready=True,
            )
            stub.DisposeExecutor(
                executor_pb2.DisposeExecutorRequest(executor=found.executor),
                timeout=timeout_seconds,
            )
        except grpc.RpcError:
            return False
    return True


class WorkerConnection(tff.framework.AsyncContext):
    """A TFF context that computes on one worker.

    Args:
      address: "host:port".
      reconnect_seconds: how long the worker may be gone until it is given up.
      explain: makes the error for a worker that is given up, from what happened.
    """

    def __init__(
        self,
        address: str,
        reconnect_seconds: float,
        explain: Callable[[str], WorkersUnavailable],
    ) -> None:
        self.address = address
        self._reconnect_seconds = reconnect_seconds
        self._explain = explain
        self._limits = _Limits()
        self._channel = grpc.insecure_channel(address, _CHANNEL_OPTIONS)
        self._stub = tff.framework.RemoteExecutorGrpcStub(
            grpc.intercept_channel(self._channel, self._limits)
        )
        self._context = tff.framework.AsyncExecutionContext(
            executor_fn=tff.framework.ResourceManagingExecutorFactory(self._executor),
            compiler_fn=tff.backends.native.desugar_and_transform_to_native,
            transform_args=_to_numpy,
            transform_result=_to_numpy,
        )
        self._loop = asyncio.new_event_loop()
        threading.Thread(
            target=self._loop.run_forever, name=f"worker {address}", daemon=True
        ).start()
        self._finalizer = weakref.finalize(self, _end, self._loop, self._channel)

    async def invoke(self, comp: Any, arg: Any) -> Any:
        # As `compute`. No thread of asyncio's pool: Python's exit would wait for it.
        work = self._begin(comp, arg)
        waiting = asyncio.wrap_future(work)
        while not (await asyncio.wait({waiting}, timeout=_SECONDS_BETWEEN_LOOKS))[0]:
            self._check(work)
        return self._result(work)

    def compute(self, comp: Any, arg: Any) -> Any:
        """The result of a computation, before `DEADLINE`.

        Raises:
          WorkersUnavailable: if the worker does not answer in time, or is gone.
        """
        work = self._begin(comp, arg)
        while not concurrent.futures.wait({work}, _SECONDS_BETWEEN_LOOKS).done:
            self._check(work)
        return self._result(work)

    def _begin(self, comp: Any, arg: Any) -> concurrent.futures.Future:
        self._limits.gone_since = None
        return asyncio.run_coroutine_threadsafe(self._invoke(comp, arg), self._loop)

    async def _invoke(self, comp: Any, arg: Any) -> Any:
        try:
            return await self._context.invoke(comp, arg)
        except TypeError as error:
            # TFF prints the argument: keys, noise and what clients sent.
            what, found, rest = str(error).partition(_PRINTED_BY_TFF)
            if not found:
                raise
            expected = rest.rpartition("\nto\n")[2]
            raise TypeError(f"{what}Expected {expected}") from None

    def _check(self, work: concurrent.futures.Future) -> None:
        now, gone_since = time.monotonic(), self._limits.gone_since
        if now > DEADLINE.get():
            what = _LATE
        elif gone_since is not None and now - gone_since > self._reconnect_seconds:
            what = f"was gone for {self._reconnect_seconds:g} s"
        else:
            return
        work.cancel()
        raise self._explain(what)

    def _result(self, work: concurrent.futures.Future) -> Any:
        try:
            return work.result()
        except _Late as late:
            raise self._explain(_LATE) from late

    def close(self) -> None:
        """Ends connection and thread; closing twice is harmless."""
        self._finalizer()

    def _executor(self, cardinalities: Any) -> tff.framework.RemoteExecutor:
        # Without clients in the argument there are none.
        cardinalities.setdefault(tff.CLIENTS, 0)
        executor = tff.framework.RemoteExecutor(self._stub)
        executor.set_cardinalities(cardinalities)
        return executor


def _end(loop: asyncio.AbstractEventLoop, channel: grpc.Channel) -> None:
    channel.close()
    loop.call_soon_threadsafe(loop.stop)


class _Late(Exception):
    """A call was not answered before the deadline."""


class _Limits(grpc.UnaryUnaryClientInterceptor):
    """Puts the deadline on each call, and notes since when the worker is gone."""

    def __init__(self) -> None:
        self.gone_since: float | None = None

    def intercept_unary_unary(
        self, continuation: Any, client_call_details: Any, request: Any
    ) -> Any:
        # Values are also disposed of when no computation runs.
        deadline = DEADLINE.get(None)
        rest = _SECONDS_TO_DISPOSE if deadline is None else deadline - time.monotonic()
        timeout = None if rest == float("inf") else max(rest, 0.001)
        details = client_call_details._replace(timeout=timeout)  # a named tuple
        call = continuation(details, request)
        code = call.code()
        if code is grpc.StatusCode.UNAVAILABLE:
            self.gone_since = self.gone_since or time.monotonic()
        else:
            self.gone_since = None
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise _Late(client_call_details.method)
        return call


def _to_numpy(structure: Any) -> Any:
    """As TFF's contexts do with what TensorFlow's users hand them."""

    def convert(value: Any) -> Any:
        if isinstance(value, tf.Variable):
            return value.read_value().numpy()
        if isinstance(value, tf.Tensor) and not tf.is_symbolic_tensor(value):
            return value.numpy()
        return None

    # traverse: map_structure would sort the keys of dictionaries.
    return tree.traverse(convert, structure)
