"""Records the inputs and outputs of layers in a forward pass."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.forward.tapped_layers import Unit
from tf_bandmf.keras.clipping.independence.places import CallShape
from tf_bandmf.keras.clipping.rules import LayerCall
from tf_bandmf.keras.clipping.tensors import batches
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.compat.patching import all_patched


class Recorder:
    """Records the calls of layers, and the operations that each call created.

    Args:
      units: the layers whose calls are recorded.
      shapes: the expected `CallShape` of each call, in the order of the calls.
      data: the batch.

    Attributes:
      start: number of operations in the graph before the forward pass.
      tape: records the operations through which the losses depend on the taps (the
        tensors for which norm rules request gradients). Unlike `tf.gradients`, the tape
        creates no operations for the gradients of weights.
      calls: the recorded calls, in the order in which they start.
      unit_of: maps the number of an operation to the layer whose call created it (the
        innermost one, if calls are nested).
    """

    def __init__(
        self, units: Sequence[Unit], shapes: Sequence[CallShape], data: Any
    ) -> None:
        self._units = units
        self._shapes = iter(shapes)
        self.tape = tf.GradientTape(watch_accessed_variables=False)
        self._data = data
        self._graph = tf.compat.v1.get_default_graph()
        self._unit: Unit | None = None
        self.start = self._position()
        self.calls: list[tuple[Unit, LayerCall]] = []
        self.unit_of: dict[int, Unit] = {}

    def tapping(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which calls to the layers in this thread are recorded.

        On exit, the layers' own `call` is restored, even after an error. A distribution
        strategy traces its replicas in threads that take turns during a forward pass,
        so only the thread that replaced a `call` sees the replacement.
        """
        return all_patched(
            (unit.layer, "call", functools.partial(self._called, unit))
            for unit in self._units
        )

    def _called(
        self, unit: Unit, original: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Records and runs a call to the layer of a unit.

        Raises:
          UnsupportedModelError: if the layer is called in a loop or a nested function,
            or not in the same order as on symbolic tensors.
        """
        around, layer = self._unit, unit.layer
        if around is not None and not around.rule.opens:
            return original(*args, **kwargs)
        if tf.compat.v1.get_default_graph() is not self._graph:
            raise UnsupportedModelError(
                f"Layer {layer.name!r} ({type(layer).__name__}) is called inside a "
                "loop, a condition or a tf.function within the model, where per-example "
                "gradients are not available. Call the layer outside of these, or move "
                "the loop and the layer's weights into one layer."
            )
        # Calls are in the order in which they start: the call to a layer comes before
        # the calls to its inner layers.
        shape = next(self._shapes, None)
        if shape is None or shape.layer is not layer:
            raise UnsupportedModelError(
                f"Layer {layer.name!r} is called in a different order when TensorFlow "
                "traces the model than when the model runs on Keras' symbolic tensors. "
                "Let the model's `call` always call its layers in the same order."
            )
        flags: Sequence[bool] = shape.batched
        if not any(flags):
            args, kwargs = batches.map_tensors(self._repeat, (args, kwargs))
            flags = [True] * len(flags)
        given = zip(keras.tree.flatten((args, kwargs)), flags)
        call = LayerCall(
            layer=layer,
            variables=list(unit.variables),
            original=original,
            args=args,
            kwargs=kwargs,
            tape=self.tape,
            batched=tuple(flag for leaf, flag in given if tf.is_tensor(leaf)),
        )
        self.calls.append((unit, call))
        start, self._unit = self._position(), unit
        try:
            return unit.rule.forward(call)
        finally:
            for number in range(start, self._position()):
                self.unit_of.setdefault(number, unit)
            self._unit = around

    def _position(self) -> int:
        return len(self._graph.get_operations())

    def _repeat(self, tensor: tf.Tensor) -> tf.Tensor:
        """Repeats a tensor that all examples share, once per example: [B, ...]."""
        if tuple(tensor.shape[:1]) != (1,):
            tensor = tensor[None]
        size = batches.batch_size(self._data)[1]
        return tf.broadcast_to(tensor, [size, *keras.ops.shape(tensor)[1:]])
