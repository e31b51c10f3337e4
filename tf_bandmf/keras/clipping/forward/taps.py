"""Taps: recording what each layer sees and returns in one forward pass."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.forward.tapped_layers import Unit
from tf_bandmf.keras.clipping.independence.places import CallShape
from tf_bandmf.keras.clipping.rules import LayerCall
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.compat.patching import patched


class Window(NamedTuple):
    """The call of a layer, in which operations of a graph were made.

    Attributes:
      layer: the layer that was called.
      unit: the unit that was being recorded: the layer's own, or one that encloses the
        layer; or None.
    """

    layer: Any
    unit: Unit | None


class Recorder:
    """Records the calls of tapped layers, and in which call each operation was made.

    Args:
      units: the layers to tap.
      shapes: what is known about each call, in the order of the calls.
      size: the batch size.

    Raises:
      RuntimeError: in eager code, which leaves no operations that could be checked.
    """

    def __init__(
        self, units: Sequence[Unit], shapes: Sequence[CallShape], size: tf.Tensor
    ) -> None:
        if tf.executing_eagerly():
            raise RuntimeError("A pass is recorded in a graph, found eager code.")
        self._units = {id(unit.layer): unit for unit in units}
        self._shapes = shapes
        self._size = size
        self._graph = tf.compat.v1.get_default_graph()
        self._window: Window | None = None
        # The window of each operation, except those since the last call began or ended.
        self._windows: list[Window | None] = []
        self.calls: list[tuple[Unit, LayerCall]] = []

    @contextlib.contextmanager
    def tapping(self, layers: Sequence[Any]) -> Iterator[None]:
        """Directs calls of layers to the recorder, in this thread.

        The layers' own `call` is restored afterwards, whatever happens. Replicas of a
        distribution strategy trace in threads that take turns in the middle of a forward
        pass: only the thread that replaced a `call` sees the replacement.

        Args:
          layers: all layers whose calls are to be seen.
        """
        with contextlib.ExitStack() as stack:
            for layer in layers:
                redirect = functools.partial(self._called, layer)
                stack.enter_context(patched(layer, "call", redirect))
            yield

    def _called(
        self, layer: Any, original: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Handles a call of a layer.

        Raises:
          UnsupportedModelError: if a tapped layer is called in a loop or inner function.
        """
        window = self._window
        around = None if window is None else window.unit
        is_open = around is None or around.rule.opens
        unit = self._units.get(id(layer)) if is_open else None
        if tf.compat.v1.get_default_graph() is not self._graph:
            if unit is None:
                return original(*args, **kwargs)
            raise UnsupportedModelError(
                f"Layer {layer.name!r} ({type(layer).__name__}) is called inside a "
                "loop, a condition or a tf.function within the model, where its "
                "per-example gradients cannot be followed. Call it directly from "
                "`call`, or put the loop and the layer's weights into one layer."
            )
        self._note_operations()
        self._window = Window(layer, unit or around)
        try:
            if unit is None:
                return original(*args, **kwargs)
            return unit.rule.forward(self._described(unit, original, args, kwargs))
        finally:
            self._note_operations()
            self._window = window

    def position(self) -> int:
        """Returns the number of operations that the graph has."""
        return len(self._graph.get_operations())

    def windows(self) -> list[Window | None]:
        """Returns, for each operation, the innermost call that made it, or None."""
        self._note_operations()
        return self._windows

    def _note_operations(self) -> None:
        """Notes the current call for all operations since a call last began or ended."""
        self._windows += [self._window] * (self.position() - len(self._windows))

    def _described(
        self,
        unit: Unit,
        original: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> LayerCall:
        """Notes a call, with what is known about its batch dimensions."""
        # Calls are in the order in which they begin: an opened layer's call comes before
        # the calls of the layers inside it.
        place = len(self.calls)
        shape = self._shapes[place] if place < len(self._shapes) else None
        leaves = keras.tree.flatten((args, kwargs))
        tensors = [place for place, leaf in enumerate(leaves) if tf.is_tensor(leaf)]
        if (
            shape is None
            or shape.layer is not unit.layer
            or max(tensors, default=-1) >= len(shape.batched)
        ):
            raise UnsupportedModelError(
                f"Layer {unit.layer.name!r} is not called in the same order when the "
                "model is traced as on symbolic tensors of Keras, so its gradients cannot "
                "be followed. Let `call` make the same calls in the same order each time."
            )
        call = LayerCall(
            layer=unit.layer,
            variables=list(unit.variables),
            original=original,
            args=args,
            kwargs=kwargs,
            batched=tuple(shape.batched[place] for place in tensors),
        )
        if shape.new_axes is not None:
            call.spread = functools.partial(self._repeat, new_axes=shape.new_axes)
        self.calls.append((unit, call))
        return call

    def _repeat(self, tensor: tf.Tensor, new_axes: int) -> tf.Tensor:
        if new_axes:
            tensor = tensor[None]
        shape = tf.concat([[self._size], tf.shape(tensor)[1:]], axis=0)
        repeated = tf.broadcast_to(tensor, shape)
        return tf.ensure_shape(repeated, [None, *tensor.shape[1:]])
