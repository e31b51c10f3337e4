"""Taps: recording what each layer sees and returns in one forward pass."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.forward.tapped_layers import Unit
from tf_bandmf.keras.clipping.forward.weight_reads import ReadLog
from tf_bandmf.keras.clipping.independence.places import CallShape, Spread
from tf_bandmf.keras.clipping.independence.trace import Trace
from tf_bandmf.keras.clipping.rules import LayerCall
from tf_bandmf.keras.clipping.tensors import batches
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.compat.keras_objects import EXTRAS
from tf_bandmf.keras.compat.patching import patched


class Recorder:
    """Records the calls of tapped layers.

    Args:
      units: the layers to tap.
      log: notes which variables are read where.
      shapes: what is known about each call, in their order.
      size: the batch size.
      trace: notes what shows that examples are independent.
    """

    def __init__(
        self,
        units: Sequence[Unit],
        log: ReadLog,
        shapes: Sequence[CallShape],
        size: tf.Tensor,
        trace: Trace,
    ) -> None:
        self._units = {id(unit.layer): unit for unit in units}
        self._log = log
        self._shapes = shapes
        self._size = size
        self._trace = trace
        self._place = tf.compat.v1.get_default_graph()
        self._inside = False
        self.calls: list[tuple[Unit, LayerCall]] = []

    def handles(self, layer: Any) -> bool:
        """Whether a call of this layer is to be recorded now."""
        return not self._inside and id(layer) in self._units

    def record(
        self,
        layer: Any,
        original: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Runs and records one call.

        Raises:
          UnsupportedModelError: if the call is inside a loop or inner function.
        """
        unit = self._units[id(layer)]
        if tf.compat.v1.get_default_graph() is not self._place:
            raise UnsupportedModelError(
                f"Layer {layer.name!r} ({type(layer).__name__}) is called inside a "
                "loop, a condition or a tf.function within the model, where its "
                "per-example gradients cannot be followed. Call it directly from "
                "`call`, or put the loop and the layer's weights into one layer."
            )
        call = LayerCall(
            layer=layer,
            variables=list(unit.variables),
            original=original,
            args=args,
            kwargs=kwargs,
        )
        self._describe(call)
        # In the order in which calls begin: an opened layer's come before those inside.
        self.calls.append((unit, call))
        self._inside = not unit.rule.opens
        passed_on: list[tf.Tensor] = []
        try:
            with self._log.inside(unit, passed_on), self._trace.within(layer):
                outputs = unit.rule.forward(call)
                passed_on += [*call.taps, *_with_extras(outputs)]
        finally:
            self._inside = False
        return outputs

    def watch(
        self,
        layer: Any,
        original: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Runs a call that needs no taps, and notes where it is."""
        if not self._trace.is_current():
            return original(*args, **kwargs)
        with self._trace.within(layer):
            return original(*args, **kwargs)

    def _describe(self, call: LayerCall) -> None:
        """Adds to a call what is known about its batch dimensions."""
        place = len(self.calls)
        shape = self._shapes[place] if place < len(self._shapes) else None
        leaves = keras.tree.flatten((call.args, call.kwargs))
        tensors = [place for place, leaf in enumerate(leaves) if tf.is_tensor(leaf)]
        if (
            shape is None
            or shape.layer is not call.layer
            or max(tensors, default=-1) >= len(shape.batched)
        ):
            raise UnsupportedModelError(
                f"Layer {call.layer.name!r} is not called in the same order each time "
                "the model is traced, and on symbolic tensors of Keras, so its gradients "
                "cannot be followed. Make `call` deterministic, and the same for both."
            )
        call.batched = tuple(shape.batched[place] for place in tensors)
        if shape.spread is not Spread.NONE:
            call.spread = functools.partial(self._repeat, mode=shape.spread)

    def _repeat(self, tensor: tf.Tensor, mode: Spread) -> tf.Tensor:
        if mode is Spread.NEW_AXIS:
            tensor = tensor[None]
        shape = tf.concat([[self._size], tf.shape(tensor)[1:]], axis=0)
        repeated = tf.broadcast_to(tensor, shape)
        return tf.ensure_shape(repeated, [None, *tensor.shape[1:]])


def _with_extras(structure: Any) -> list[tf.Tensor]:
    """Tensors of a structure, and the masks and logits that Keras attaches to them."""
    leaves = batches.tensor_leaves(structure)
    extras = [getattr(leaf, name, None) for leaf in leaves for name in EXTRAS]
    return [*leaves, *(extra for extra in extras if extra is not None)]


@contextlib.contextmanager
def tapped(recorder: Recorder, layers: Sequence[Any]) -> Iterator[None]:
    """Directs calls of layers to the recorder, in this thread.

    The layers' own `call` is back afterwards, whatever happens. Replicas of a
    distribution strategy trace in threads that take turns in the middle of a forward
    pass: what a thread replaced, it alone sees.

    Args:
      recorder: receives the calls.
      layers: all layers whose calls are to be seen.
    """
    with contextlib.ExitStack() as stack:
        for layer in layers:
            redirect = functools.partial(_redirected, recorder, layer)
            stack.enter_context(patched(layer, "call", redirect))
        yield


def _redirected(
    recorder: Recorder,
    layer: Any,
    original: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """A call of a layer."""
    if recorder.handles(layer):
        return recorder.record(layer, original, args, kwargs)
    return recorder.watch(layer, original, args, kwargs)
