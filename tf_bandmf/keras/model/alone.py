"""Names the layers that run for each example by itself, and refuses some of them.

If the analysis of the graph does not show that a layer keeps examples apart, the layer
gets batches of one. For most such layers, this changes nothing but the time that they
take. But a layer whose result depends on the other examples of a batch then computes
something else, and the model would learn something other than the user meant: the layer
is refused, unless the user names it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Collection
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_bandmf.keras.clipping import UnsupportedModelError, layers_executed_alone
from tf_bandmf.keras.compat.keras_objects import all_layers
from tf_bandmf.keras.compat.patching import patched

# How many made-up examples show what layers do.
EXAMPLES = 3
# Relative and absolute differences that rounding makes, also in bfloat16.
_CLOSE = {"rtol": 3e-2, "atol": 1e-4}


def checked_names(model: keras.Model, alone: Collection[str]) -> frozenset[str]:
    """The names of layers that may run on batches of one, whatever that changes.

    Raises:
      ValueError: if it is no collection of names, or the model is built and has no layer of
        such a name.
    """
    if isinstance(alone, str) or not all(isinstance(name, str) for name in alone):
        raise ValueError(
            f"alone must be a list of names of layers, found {alone!r}. Give "
            f"alone=[layer.name]."
        )
    known = {layer.name for layer in all_layers(model)}
    unknown = sorted(set(alone) - known)
    if unknown and model.built:
        raise ValueError(
            f"alone names {', '.join(unknown)}, and the model has no such layer."
        )
    return frozenset(alone)


def check_layers_alone(
    model: keras.Model, inputs: Any, accepted: Collection[str], quiet: bool
) -> None:
    """Names the layers that run alone; refuses those whose results depend on others.

    Args:
      model: private, built, and traced for such inputs.
      inputs: made-up ones of several examples.
      accepted: names of layers that are not refused.
      quiet: prints nothing.

    Raises:
      UnsupportedModelError: if a layer that is not accepted gives an example another
        result in a batch than by itself.
    """
    layers = layers_executed_alone(model)
    if not layers:
        return
    for layer in _dependent(model, layers, inputs):
        if layer.name not in accepted:
            raise UnsupportedModelError(
                f"Layer {layer.name!r} ({type(layer).__name__}) gives an example another "
                f"result beside other examples than by itself: it mixes the examples of "
                f"a batch. In private training it would get batches of one, and learn "
                f"something else than you mean. Take statistics of each example by "
                f"itself, or constants of public data; or make what is compared one "
                f"example (a pair, a row with its negatives); or, if batches of one are "
                f"what you want, make_private(model, alone=[{layer.name!r}])."
            )
    if not quiet:
        names = ", ".join(f"{each.name} ({type(each).__name__})" for each in layers)
        print(
            f"tf_bandmf: these layers run on each example by itself, as it could not be "
            f"shown that they keep examples apart: {names}. That takes longer. Write "
            f"them with keras.ops instead of tf functions; or, if a class acts on each "
            f"example alone, vouch for it: tf_bandmf.keras.register_per_example_layer.",
            file=sys.stderr,
            flush=True,
        )


def _dependent(model: keras.Model, layers: Collection[Any], inputs: Any) -> list[Any]:
    """The layers that give an example another result without the others."""
    calls: list[tuple[Any, Any, Any, Any]] = []

    def recorded(layer: Any) -> Callable[..., Any]:
        def call(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            found = original(*args, **kwargs)
            calls.append((layer, args, kwargs, found))
            return found

        return call

    with contextlib.ExitStack() as stack:
        for layer in layers:
            stack.enter_context(patched(layer, "call", recorded(layer)))
        model(inputs, training=False)
    found: list[Any] = []
    for layer, args, kwargs, together in calls:
        if any(layer is other for other in found):
            continue
        if not _same(together, layer.call(*args, **kwargs)):
            continue
        # The first alone does not show sums over those before, nor copies of the first.
        for place in (0, EXAMPLES - 1):
            alone = layer.call(*_row(args, place), **_row(kwargs, place))
            if not _same(_row(together, place), alone):
                found.append(layer)
                break
    return found


def _row(structure: Any, place: int) -> Any:
    """One example of what has several; the rest as it is."""

    def row(leaf: Any) -> Any:
        is_batch = tf.is_tensor(leaf) and leaf.shape.rank and leaf.shape[0] == EXAMPLES
        return leaf[place : place + 1] if is_batch else leaf

    return tf.nest.map_structure(row, structure)


def _same(one: Any, other: Any) -> bool:
    pairs = zip(tf.nest.flatten(one), tf.nest.flatten(other))
    return all(_close(a, b) for a, b in pairs if tf.is_tensor(a) and tf.is_tensor(b))


def _close(a: tf.Tensor, b: tf.Tensor) -> bool:
    if a.shape != b.shape:
        return False
    if not (a.dtype.is_floating or a.dtype.is_complex):
        return bool(tf.reduce_all(a == b))
    a, b = (tf.cast(value, tf.complex128).numpy() for value in (a, b))
    return bool(np.allclose(a, b, equal_nan=True, **_CLOSE))
