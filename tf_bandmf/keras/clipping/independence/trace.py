"""What a trace of a model says about independence, while it is made and afterwards."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_bandmf.keras.clipping.independence import state
from tf_bandmf.keras.clipping.independence.state import NotIndependent
from tf_bandmf.keras.compat.graphs import forget_gradients, is_argument

_STATE = threading.local()


@dataclasses.dataclass
class _Window:
    layer: Any
    start: int
    stop: int = -1


@dataclasses.dataclass(frozen=True)
class _Isolated:
    name: str
    copies: tuple[Any, ...]
    outputs: tuple[Any, ...]
    repeated: bool


class Trace:
    """Notes where the graph of a step comes from, and finds out what depends on what.

    Args:
      examples: the tensors [B, ...] that the model and the loss are given.
    """

    def __init__(self, examples: Sequence[tf.Tensor]) -> None:
        self._graph = tf.compat.v1.get_default_graph()
        self._start = self._position()
        self._examples = tuple(examples)
        self._windows: list[_Window] = []
        self._isolated: list[_Isolated] = []
        self._keep: list[Any] = []
        self._replaced: dict[int, Any] = {}

    def _position(self) -> int:
        return len(self._graph.get_operations())

    def is_current(self) -> bool:
        """Whether operations that are made now belong to the graph."""
        return tf.compat.v1.get_default_graph() is self._graph

    @contextlib.contextmanager
    def within(self, layer: Any) -> Iterator[_Window]:
        """Notes that what its body makes is the layer's."""
        window = _Window(layer, self._position())
        yield window
        window.stop = self._position()
        self._windows.append(window)

    def replaces_gradient(self, results: Sequence[Any]) -> None:
        """Notes what the step gave a gradient of its own, in place of another.

        Args:
          results: tensors with that gradient.
        """
        self._replaced.update((id(tensor.op), tensor.op) for tensor in results)

    def done(self) -> None:
        """Says that no gradient will be taken of the graph any more."""
        forget_gradients(self._replaced.values())
        self._replaced.clear()

    def isolated(
        self,
        name: str,
        elements: Sequence[Any],
        copies: Sequence[Any],
        outputs: Sequence[Any],
        *,
        repeated: bool = True,
    ) -> None:
        """Notes that something was executed for each example by itself.

        Args:
          name: what was executed.
          elements: tensors [B, ...] that were cut into examples.
          copies: copies of these that nothing else has seen.
          outputs: results [B, ...].
          repeated: whether it runs a second time for its gradient.
        """
        self._keep.extend([*outputs, *elements])
        self._isolated.append(_Isolated(name, tuple(copies), tuple(outputs), repeated))

    def check_isolation(self) -> None:
        """Shows that what ran for each example by itself saw nothing else.

        Raises:
          NotIndependent: if it reads a tensor of the whole batch.
        """
        for isolated in self._isolated:
            self._check_isolated(isolated)

    def _check_isolated(self, isolated: _Isolated) -> None:
        allowed = {id(copy) for copy in isolated.copies}
        examples = {id(tensor) for tensor in self._examples}
        seen: set[int] = set()
        pending = list(isolated.outputs)
        while pending:
            tensor = pending.pop()
            if id(tensor) in allowed or id(tensor) in seen:
                continue
            seen.add(id(tensor))
            op = tensor.op
            if id(tensor) in examples or (
                is_argument(op) and tensor.dtype not in (tf.resource, tf.variant)
            ):
                raise NotIndependent(
                    f"{isolated.name} is executed for each example by itself, but reads "
                    "a tensor of the whole batch that it was not given",
                    op,
                )
            if id(op) in seen:
                continue
            seen.add(id(op))
            if isolated.repeated and state.Effect.DRAWS in state.effects(op):
                raise NotIndependent(
                    f"{isolated.name} draws random numbers with {op.type}, which cannot "
                    "be repeated for its gradient: use `keras.random` with a "
                    "`keras.random.SeedGenerator`",
                    op,
                )
            state.refuse_host_operation(op)
            pending.extend(op.inputs)

    def refuse_state(
        self, is_seed: Callable[[Any], bool], is_metric: Callable[[Any], bool]
    ) -> None:
        """Refuses writes to variables and host code since the trace began.

        Raises:
          NotIndependent: with the operation.
        """
        operations = self._graph.get_operations()[self._start :]
        state.refuse_state(operations, is_seed, is_metric)

    def layers_at(self, error: NotIndependent) -> list[Any]:
        """Layers in whose calls an error is, the innermost first."""
        operations = self._graph.get_operations()
        if error.operation not in operations:
            return []
        position = operations.index(error.operation)
        inside = [w for w in self._windows if w.start <= position < w.stop]
        return [w.layer for w in sorted(inside, key=lambda w: w.stop - w.start)]


@contextlib.contextmanager
def recording(trace: Trace) -> Iterator[None]:
    """Makes a trace the current one of this thread."""
    previous = getattr(_STATE, "trace", None)
    _STATE.trace = trace
    try:
        yield
    finally:
        _STATE.trace = previous


def current_trace() -> Trace | None:
    """The trace that is being made in this thread, or None."""
    return getattr(_STATE, "trace", None)
