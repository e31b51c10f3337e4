"""Registration of layer classes for which the user vouches."""

from __future__ import annotations

from typing import Any, TypeVar

import keras

from tf_bandmf.keras.clipping.independence.layers import LAYERS, Shapes
from tf_bandmf.keras.compat.keras_objects import all_layers

_Class = TypeVar("_Class", bound=type)


def vouched(layer: Any, shapes: Shapes) -> bool:
    """Returns True: a layer for which the user vouches is accepted for any shapes."""
    return True


def register_per_example_layer(layer_class: _Class) -> _Class:
    """Vouches that a layer class keeps examples separate; can be used as a decorator.

    WARNING: nothing proves this. The result of such a layer for an example, and the
    gradient of the result, must depend only on that example, the weights and random
    numbers. This must hold for all weights, other examples and batch sizes. Otherwise,
    there is no privacy. The model's `privacy_statement` names the class.

    Vouching is necessary only for layers that would otherwise be refused. It saves time
    for layers that would otherwise run on one example at a time.

    Args:
      layer_class: a subclass of `keras.layers.Layer`. Its subclasses are not included.
        The first axis of all tensors that `call` takes or returns must be the batch
        axis.

    Returns:
      The class.

    Raises:
      TypeError: if `layer_class` is not a layer class, or is a model class.
    """
    is_layer = isinstance(layer_class, type) and issubclass(layer_class, keras.Layer)
    if not is_layer or issubclass(layer_class, keras.Model):
        raise TypeError(
            f"layer_class must be a subclass of keras.layers.Layer but not of keras.Model, "
            f"found {layer_class!r}. For a model, register the classes of its layers."
        )
    LAYERS[layer_class] = vouched
    return layer_class


def vouched_classes(model: keras.Model) -> tuple[str, ...]:
    """Returns the sorted names of the vouched layer classes in a model."""
    kinds = {type(layer) for layer in all_layers(model)}
    classes = [kind for kind in kinds if LAYERS.get(kind) is vouched]
    return tuple(sorted(f"{c.__module__}.{c.__qualname__}" for c in classes))
