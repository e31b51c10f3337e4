"""Clones a Sequential or functional model, with new layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from tf_bandmf.keras.compat.keras_objects import output_shape_of_lambda


def cloned(
    model: keras.Model, replace: Callable[[Any], Any | None] = lambda layer: None
) -> keras.Model:
    """A plain model of the same architecture with new weights, not compiled.

    As `keras.models.clone_model` does it: layers are made again by their own classes,
    which need not be registered. Functions of `Lambda` layers are taken over.

    Args:
      model: built, Sequential or functional, private or not; models within it, too.
      replace: function that gives a layer's replacement, or None for a layer like it.

    Returns:
      A `keras.Sequential` or a functional `keras.Model`.

    Raises:
      TypeError: if a layer has no config to make it again from.
    """
    return _cloned(model, replace, {})


def _cloned(
    model: keras.Model, replace: Callable[[Any], Any | None], made: dict[int, Any]
) -> keras.Model:
    """As `cloned`; `made` holds the clones of layers that several models share."""

    def again(layer: Any) -> Any:
        if id(layer) not in made:
            made[id(layer)] = _one(layer, replace, made)
        return made[id(layer)]

    if isinstance(model, keras.Sequential):
        shape = tuple(model.input_shape)
        first = keras.Input(batch_shape=shape, dtype=model.inputs[0].dtype)
        same = keras.Sequential([first, *model.layers], name=model.name)
        found = keras.models.clone_model(same, clone_function=again)
    else:
        same = keras.Model(model.input, model.output, name=model.name)
        found = keras.models.clone_model(
            same, clone_function=again, call_function=_called
        )
    found.trainable = model.trainable
    for layer, other in zip(same.layers, found.layers):
        other.trainable = layer.trainable
    return found


def _one(layer: Any, replace: Callable[[Any], Any | None], made: dict[int, Any]) -> Any:
    found = replace(layer)
    if found is not None:
        return found
    kind = type(layer)
    # keras.Model(inputs, outputs) is of a class of its own.
    functional = kind.__name__ == "Functional" and issubclass(kind, keras.Model)
    if (kind is keras.Sequential or functional) and layer.built:
        return _cloned(layer, replace, made)
    if isinstance(layer, keras.layers.Lambda):
        return _same_lambda(layer)
    try:
        return type(layer).from_config(layer.get_config())
    except NotImplementedError as error:
        raise TypeError(
            f"Layer {layer.name!r} ({type(layer).__name__}) has no get_config to make "
            f"it again from. Give its class one; or make a plain model yourself: "
            f"to_plain(model, into=plain)."
        ) from error


def _called(layer: Any, *args: Any, **kwargs: Any) -> Any:
    """As the layer was called; one in another's place may know no masks."""
    if kwargs.get("mask", 0) is None:
        del kwargs["mask"]
    return layer(*args, **kwargs)


def _same_lambda(layer: keras.layers.Lambda) -> keras.layers.Lambda:
    """With the very function: its code alone would not find the names that it uses."""
    config = keras.layers.Layer.get_config(layer)
    return keras.layers.Lambda(
        layer.function,
        output_shape=output_shape_of_lambda(layer),
        mask=layer.mask,
        arguments=layer.arguments,
        **config,
    )
