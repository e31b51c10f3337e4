"""Where weights are read.

Per-example gradients are those of the tapped calls. A weight that is also read
elsewhere (a decoder that uses an embedding's table, a loss that penalizes a kernel)
would lose that part of its gradient without any sign. So every operation of the graph that
takes the handle of a weight is looked at.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.forward.tapped_layers import Unit
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.clipping.tensors.variables import VariableIndex
from tf_bandmf.keras.compat.graphs import EagerTensor


class ReadLog:
    """Notes reads of trainable weights during one forward pass and loss, in a graph.

    Args:
      model: the model, for messages.
      variables: its trainable variables.

    Raises:
      RuntimeError: in eager code.
    """

    def __init__(self, model: keras.Model, variables: Sequence[Any]) -> None:
        self._model = model
        self._index = VariableIndex(variables)
        self._windows: list[tuple[int, int, Unit, Sequence[tf.Tensor]]] = []
        self._unit_of: dict[int, Unit] = {}
        self._graph = traced_graph()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Notes reads in its body; checks them at its end.

        Raises:
          UnsupportedModelError: if a weight is read outside its layer's call.
        """
        start = self._position()
        yield
        self._check_graph(start)

    @contextlib.contextmanager
    def inside(self, unit: Unit, passed_on: Sequence[tf.Tensor]) -> Iterator[None]:
        """Allows reads of the unit's own weights in its body.

        Its body fills `passed_on` with taps and results, through which gradients come.
        """
        start = self._position()
        yield
        self._windows.append((start, self._position(), unit, passed_on))

    def unit_at(self, position: int) -> Unit | None:
        """Returns the unit in whose call an operation of the graph was made."""
        if not self._unit_of:
            # A call inside of another one ends before it, and overrides it.
            for start, stop, unit, _ in reversed(self._windows):
                self._unit_of.update(dict.fromkeys(range(start, stop), unit))
        return self._unit_of.get(position)

    def escape(self) -> tuple[Any, Unit] | None:
        """An operation outside a unit's call that takes what the call kept to itself.

        A derivative that is taken within the model is one: the gradient of the weights
        lacks what comes by this way. Asked after the pass, and before its gradients.

        Returns:
          The operation and the unit, or None.
        """
        at: dict[int, int] = {}
        for index in reversed(range(len(self._windows))):
            start, stop, *_ = self._windows[index]
            at.update(dict.fromkeys(range(start, stop), index))
        returned = {id(t) for *_, passed_on in self._windows for t in passed_on}
        captured = self.captured_handles()
        made: dict[int, int] = {}
        for position, operation in enumerate(self._graph.get_operations()):
            window = at.get(position)
            for tensor in operation.inputs:
                if tensor.dtype == tf.resource:
                    owner = self._index.owner(captured.get(id(tensor), tensor))
                    if owner is not None and window is not None:
                        made[id(operation)] = window
                    continue
                source = made.get(id(tensor.op))
                if source is None or id(tensor) in returned:
                    continue
                start, stop, unit, _ = self._windows[source]
                if source == window:
                    made[id(operation)] = window
                elif tensor.dtype.is_floating and not start <= position < stop:
                    return operation, unit
        return None

    def captured_handles(self) -> dict[int, Any]:
        """Maps ids of the graph's handle placeholders to variable handles."""
        return captured_handles(self._graph)

    def _position(self) -> int:
        return len(self._graph.get_operations())

    def _check_graph(self, start: int) -> None:
        operations = self._graph.get_operations()
        captured = self.captured_handles()
        for position in range(start, len(operations)):
            for tensor in operations[position].inputs:
                if tensor.dtype != tf.resource:
                    continue
                variable = self._index.owner(captured.get(id(tensor), tensor))
                if variable is None:
                    continue
                unit = self.unit_at(position)
                if unit is None:
                    self._refuse(variable)
                elif not any(variable is own for own in unit.variables):
                    self._refuse(variable, unit)

    def _refuse(self, variable: Any, unit: Unit | None = None) -> None:
        where = "outside the call of its own layer"
        if unit is not None:
            where = f"in the call of layer {unit.layer.name!r}, which does not own it"
        raise UnsupportedModelError(
            f"Weight {variable.path!r} of model {self._model.name!r} is read {where}. "
            "That part of its gradient would escape clipping. Use the weight in one "
            "layer only; to share it, call that layer twice (for a tied output "
            "projection, `keras.layers.ReversibleEmbedding`)."
        )


def traced_graph() -> Any:
    """The graph that is being traced, of whose operations a check will ask.

    Raises:
      RuntimeError: in eager code, which leaves no operations: they would pass unseen.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "This check must run while a graph is traced, found eager code, in which it "
            "would see nothing. Trace what it is to look at: tf.function(function)."
        )
    return tf.compat.v1.get_default_graph()


def captured_handles(graph: Any) -> dict[int, Any]:
    """Maps placeholders of a function graph to the variable handles behind them."""
    resolved: dict[int, Any] = {}
    outer = getattr(graph, "outer_graph", None)
    outer_map: dict[int, Any] | None = None
    for external, internal in getattr(graph, "captures", ()):
        if internal.dtype != tf.resource:
            continue
        if not isinstance(external, EagerTensor) and outer is not None:
            if outer_map is None:
                outer_map = captured_handles(outer)
            external = outer_map.get(id(external), external)
        resolved[id(internal)] = external
    return resolved
