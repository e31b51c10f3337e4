"""Whether a model keeps the examples of a batch apart, and what runs alone for that."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import keras

from tf_bandmf.keras.clipping.independence.places import ROWS, Mixes
from tf_bandmf.keras.clipping.independence.walk import Walk
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.compat.keras_objects import all_layers

# Batch sizes that occur nowhere else in a model.
_SIZES = (101, 103, 107, 109, 113, 127, 131, 137, 139, 149, 151, 157, 163, 167, 173)
ADVICE = (
    "Keep the batch as the first axis and let no operation cross it; normalize along "
    "other axes (`LayerNormalization`, `GroupNormalization`); or vouch for a layer's "
    "class with `tf_bandmf.keras.register_per_example_layer`, if each row of what it "
    "returns is of one example all the same."
)


def layers_alone(
    model: keras.Model, x: Any, alone: Sequence[Any], training: bool = True
) -> tuple[list[Any], bool]:
    """Finds the layers that must run for each example by itself.

    Args:
      model: a built model.
      x: its inputs, nested tensors [B, ...], of which shapes and dtypes matter.
      alone: layers that run so already.
      training: whether it is trained or evaluated.

    Returns:
      Those, and the ones that cannot be opened, or in which examples meet; and whether
      that was shown: a model that does not take symbolic tensors must run alone.

    Raises:
      UnsupportedModelError: if examples of a batch meet outside of a layer.
    """
    sizes = _unused_sizes(model, x)
    alone, tried = list(alone), False
    while True:
        first, second = sizes[2:4] if tried else sizes[:2]
        try:
            walks = [_walk(model, x, alone, n, training) for n in (first, second)]
            layer = _counts(*walks)
            alone = walks[0].alone
            if layer is None:
                if any(map(_is_of_the_user, all_layers(model))):
                    walk = _walk(model, x, alone, first, training, is_static=False)
                    alone = walk.alone
                return alone, not any(walk.failed for walk in walks)
            alone.append(layer)
        except Mixes as error:
            # Unless a size occurs in the model after all.
            if tried:
                raise _refusal(model, error) from error
            tried = True


def _counts(first: Walk, second: Walk) -> Any:
    """The layer that computes with the number of examples, if there is one.

    Raises:
      Mixes: if a model does so itself.
    """
    for one, other in zip_longest(first.log, second.log):
        if one != other:
            layer = (one or other)[0]
            if layer is None:
                raise Mixes("computes with the number of examples in the batch")
            return layer
    return None


def _walk(
    model: keras.Model,
    x: Any,
    alone: Sequence[Any],
    size: int,
    training: bool,
    is_static: bool = True,
) -> Walk:
    walk = Walk(size, alone, is_static)

    def symbolic(leaf: Any) -> Any:
        if leaf is None:
            return None
        return walk.tensor(leaf.shape, keras.backend.standardize_dtype(leaf.dtype))

    try:
        outputs = walk.run(model, keras.tree.map_structure(symbolic, x), training)
    except Mixes:
        raise
    except Exception:
        # What the model does not take; its trace in TensorFlow says why.
        walk.failed = True
        return walk
    if any(layer is model for layer in walk.alone):
        return walk
    for leaf in keras.tree.flatten(outputs):
        place = walk.place(leaf)
        if place is not None and place != ROWS:
            raise Mixes("returns a tensor whose first axis is not that of the examples")
    return walk


def _unused_sizes(model: keras.Model, x: Any) -> list[int]:
    taken = {n for variable in model.variables for n in variable.shape}
    for leaf in keras.tree.flatten(x):
        taken.update(n for n in getattr(leaf, "shape", ())[1:] if n)
    return [size for size in _SIZES if all(n % size for n in taken)]


def _is_of_the_user(layer: Any) -> bool:
    module = type(layer).__module__
    lambdas = isinstance(layer, keras.layers.Lambda)
    return lambdas or not module.startswith(("keras.", "keras_hub."))


def _refusal(model: keras.Model, error: Mixes) -> UnsupportedModelError:
    layer = error.layer
    where = ""
    if layer is not None and layer is not model:
        where = f", in layer {layer.name!r} ({type(layer).__name__})"
    elif layer is model:
        where = ", in its own `call` or a `keras.ops` node"
    return UnsupportedModelError(
        f"Model {model.name!r}{where}: {error.reason}. It mixes examples of the batch. "
        f"{ADVICE}"
    )
