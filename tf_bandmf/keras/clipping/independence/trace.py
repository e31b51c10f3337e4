"""What a trace of a model says about independence, while it is made and afterwards."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.graphs.shapes import InferredShapes, shape_of
from tf_bandmf.graphs.walking import (
    ARGUMENTS,
    calling_operation,
    held_already,
)
from tf_bandmf.keras.clipping.independence import (  # noqa: F401  (fill the table)
    control,
    cuts,
    elementwise,
    filling,
    gradients,
    layout,
    reductions,
    state,
)
from tf_bandmf.keras.clipping.independence.custom_gradients import is_trusted
from tf_bandmf.keras.clipping.independence.domain import (
    INDEPENDENT,
    Kind,
    NotIndependent,
    Value,
    per_example,
)
from tf_bandmf.keras.clipping.independence.evaluation import Evaluation
from tf_bandmf.keras.clipping.independence.registration import is_vouched
from tf_bandmf.keras.clipping.independence.sizes import BATCH
from tf_bandmf.keras.compat.keras_objects import LOGITS, MASK
from tf_bandmf.keras.compat.own_gradients import (
    forget_gradients,
    marked_gradients,
    runs_again,
)

_STATE = threading.local()
_CONTAINERS = (keras.Model,)
_Finish = Callable[[list[Value]], Value]


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
      static_batch: if not None, B, which occurs nowhere else in the model's shapes.
    """

    def __init__(
        self, examples: Sequence[tf.Tensor], static_batch: int | None = None
    ) -> None:
        self._graph = tf.compat.v1.get_default_graph()
        self._start = self._position()
        self.static_batch = static_batch
        self._examples = tuple(examples)
        self._known = {id(t): per_example(0, BATCH) for t in examples}
        self._pending: dict[int, tuple[Sequence[Any], _Finish]] = {}
        self._windows: list[_Window] = []
        self._isolated: list[_Isolated] = []
        self._required: list[tuple[Any, bool | None]] = []
        self._keep: list[Any] = []
        self._made_from: dict[int, tuple[Any, ...]] = {}
        self._has_own_gradients = False
        self._no_look: set[int] = set()
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

    def own_gradient(self) -> None:
        """Notes that the backward pass has operations of the user's own."""
        self._has_own_gradients = True

    def require(self, tensor: tf.Tensor, batched: bool | None = True) -> None:
        """Asks that row i of a tensor is example i; or that no data is in the tensor.

        Args:
          tensor: the tensor.
          batched: whether it has such rows; None if that is not known yet.
        """
        self._required.append((tensor, batched))

    def trusts(self, layer: Any, inputs: Any) -> bool:
        """Whether the user vouches for a layer, and it gets plain tensors.

        Args:
          layer: the layer.
          inputs: nested arguments.
        """
        leaves = [t for t in keras.tree.flatten(inputs) if tf.is_tensor(t)]
        plain = [isinstance(t, tf.Tensor) and t.shape.rank is not None for t in leaves]
        return is_vouched(layer) and bool(plain) and all(plain)

    def called(
        self, window: _Window, inputs: Any, outputs: Any, spread: bool = False
    ) -> None:
        """Notes what a layer returned whose class the user vouches for.

        Args:
          window: of its call.
          inputs: nested arguments.
          outputs: what it returned.
          spread: whether an output without a batch was repeated for every example.
        """
        layer = window.layer
        given = _tensors(inputs)
        foreign = self._foreign(window, given)
        needed = [*given, *foreign]

        def finish(values: list[Value]) -> Value:
            count = len(given)
            for value in values[count:]:
                # The batch size is what an output is repeated for.
                if not (value.independent or (spread and value.kind is Kind.SIZE)):
                    raise NotIndependent(
                        f"{type(layer).__name__} reads a tensor that depends on data "
                        "and is not among its arguments"
                    )
            return _of_call(layer, given, values[:count], spread)

        for output in _tensors(outputs):
            if id(output) not in self._known and not any(output is t for t in given):
                self._pending[id(output)] = (needed, finish)
                self._keep.append(output)

    def _foreign(self, window: _Window, given: Sequence[Any]) -> list[Any]:
        """Tensors from outside that a call reads and was not given."""
        operations = self._graph.get_operations()[window.start : window.stop]
        inside = {id(op) for op in operations}
        seen = {id(tensor) for tensor in given}
        found = []
        for op in operations:
            for tensor in op.inputs:
                if id(tensor) in seen or id(tensor.op) in inside:
                    continue
                seen.add(id(tensor))
                if tensor.dtype != tf.resource:
                    found.append(tensor)
        return found

    def isolated(
        self,
        name: str,
        elements: Sequence[Any],
        copies: Sequence[Any],
        outputs: Sequence[Any],
        of_one: Sequence[Any],
        *,
        backward: bool = False,
        repeated: bool = True,
    ) -> None:
        """Notes that something was executed for each example by itself.

        Args:
          name: what was executed.
          elements: tensors [B, ...] that were cut into examples.
          copies: copies of these that nothing else has seen.
          outputs: results [B, ...].
          of_one: results of one example that they were made from, if they are vectorized.
          backward: whether the elements are gradients of the losses, which the
            forward pass decides about.
          repeated: whether it runs a second time for its gradient.
        """

        def finish(values: list[Value]) -> Value:
            for value in values:
                if not value.one_row_each:
                    raise NotIndependent(
                        f"{name} would take rows for examples that are none"
                    )
            return per_example(0, BATCH)

        for output in outputs:
            self._pending[id(output)] = (tuple(elements), finish)
        self._keep.extend([*outputs, *elements])
        if not backward:
            for element in elements:
                self.require(element)
        self._isolated.append(_Isolated(name, tuple(copies), tuple(outputs), repeated))
        if of_one:
            # What holds for one example holds for all, row by row.
            self._made_from.update((id(out), (*elements, *of_one)) for out in outputs)

    def needs_no_look(self, operations: Sequence[Any]) -> None:
        """Notes operations that do not run, or were made of those of one example."""
        self._no_look.update(map(id, operations))
        self._keep.extend(operations)

    def same(self, tensor: tf.Tensor, source: tf.Tensor) -> None:
        """Notes that a tensor is another one, with a gradient that is known to be right."""
        self._pending[id(tensor)] = ([source], lambda values: values[0])
        self._keep.extend([tensor, source])

    def check(self) -> None:
        """Shows that every tensor that is asked for depends on its own example alone.

        Raises:
          NotIndependent: if that cannot be shown.
        """
        shapes = InferredShapes(self._graph)
        while True:
            try:
                self._check(shapes)
                return
            except NotIndependent:
                if not shapes.has_more:
                    raise
                shapes = InferredShapes(self._graph, before=shapes)

    def _check(self, shapes: InferredShapes) -> None:
        evaluation = Evaluation(
            self._known,
            self._pending,
            static_batch=self.static_batch,
            shapes=shapes,
        )
        for tensor, batched in self._required:
            value = evaluation.value(tensor)
            if batched is None and value.independent:
                continue
            if batched is not False and not value.one_row_each:
                raise _at(
                    tensor,
                    "gives a tensor whose first axis is not the batch, one row for each "
                    "example",
                )
            if batched is False and not value.independent:
                raise _at(tensor, "depends on the data or the number of examples")

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
            if id(tensor) in examples or _enters(op):
                raise NotIndependent(
                    f"{isolated.name} is executed for each example by itself, but reads "
                    "a tensor of the whole batch that it was not given",
                    op,
                )
            if id(op) in seen:
                continue
            seen.add(id(op))
            if isolated.repeated and state.is_random(op.type):
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
        state.refuse_state(operations, self._examples, is_seed, is_metric)

    def layers_at(self, error: NotIndependent) -> list[Any]:
        """Layers in whose calls an error is, the innermost first."""
        op = calling_operation(error.operation, self._graph)
        if op is None:
            return []
        try:
            position = self._graph.get_operations().index(op)
        except ValueError:
            return []
        inside = [w for w in self._windows if w.start <= position < w.stop]
        return [w.layer for w in sorted(inside, key=lambda w: w.stop - w.start)]


def _enters(op: Any) -> bool:
    """Whether an operation brings data into the graph."""
    if op.type not in ARGUMENTS:
        return False
    if op.outputs[0].dtype in (tf.resource, tf.variant):
        return False
    return held_already(op.outputs[0]) is None


def _at(tensor: Any, reason: str) -> NotIndependent:
    return NotIndependent(reason, tensor.op)


def _of_call(
    layer: Any, inputs: Sequence[Any], values: list[Value], spread: bool
) -> Value:
    """The value of what a layer returns whose class the user vouches for."""
    kind = type(layer).__name__
    batched = [value for value in values if not value.independent]
    if not batched:
        return per_example(0, BATCH) if spread else INDEPENDENT
    for value in batched:
        if not value.per_example or value.axis != 0:
            raise NotIndependent(
                f"{kind} is called on a tensor whose first axis is not the batch"
            )
        if value.rows != batched[0].rows:
            raise NotIndependent(f"{kind} is called on rows split in different ways")
    assert batched[0].rows is not None
    for tensor, value in zip(inputs, values, strict=True):
        shape = shape_of(tensor)
        shared = shape.rank == 0 or (shape.rank is not None and shape[0] == 1)
        if value.independent and not shared:
            raise NotIndependent(
                f"{kind} is called on a tensor that gives each example a value which "
                "depends on its position in the batch"
            )
    return per_example(0, batched[0].rows)


def _tensors(structure: Any) -> list[Any]:
    """Tensors of a structure, with the masks and logits that Keras attaches to them."""
    found = []
    for leaf in keras.tree.flatten(structure):
        if not tf.is_tensor(leaf) or not hasattr(leaf, "op"):
            continue
        found.append(leaf)
        for name in (MASK, LOGITS):
            extra = getattr(leaf, name, None)
            if tf.is_tensor(extra) and hasattr(extra, "op"):
                found.append(extra)
    return found


def is_container(layer: Any) -> bool:
    """Whether a layer is a model, which is opened rather than executed alone."""
    return isinstance(layer, _CONTAINERS)


@contextlib.contextmanager
def recording(trace: Trace) -> Iterator[None]:
    """Makes a trace the current one of this thread."""
    previous = getattr(_STATE, "trace", None)
    _STATE.trace = trace
    try:
        with marked_gradients(is_trusted, trace.own_gradient):
            yield
    finally:
        _STATE.trace = previous


@contextlib.contextmanager
def running_again() -> Iterator[None]:
    """Has what the user's code makes, which runs a second time, analysed again."""
    trace = current_trace()
    if trace is not None:
        trace.own_gradient()
    with runs_again():
        yield


def current_trace() -> Trace | None:
    """The trace that is being made in this thread, or None."""
    return getattr(_STATE, "trace", None)
