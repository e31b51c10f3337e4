"""Clones a Sequential or functional model, with new or with replaced layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from tf_bandmf.accounting.checks import whole_number
from tf_bandmf.keras.compat.keras_objects import Functional, all_layers


def cloned(
    model: keras.Model,
    replace: Callable[[Any], Any | None] = lambda layer: None,
    made: dict[int, Any] | None = None,
) -> keras.Model:
    """Returns a plain, uncompiled model of the same architecture, with new weights.

    As in `keras.models.clone_model`, each layer is recreated by its own class, which
    does not have to be registered. The model and its clone share `Lambda` layers.

    Args:
      model: a built Sequential or functional model. It and the models within it may be
        private.
      replace: function that returns a layer's replacement; or None, to clone the layer.
      made: the clones that exist already, by the ids of the original layers.

    Returns:
      A `keras.Sequential` or a functional `keras.Model`.

    Raises:
      TypeError: if a layer has no config from which it can be recreated.
    """
    made = {} if made is None else made

    def again(layer: Any) -> Any:
        if id(layer) not in made:
            if type(layer) in (keras.Sequential, Functional) and layer.built:
                made[id(layer)] = cloned(layer, replace, made)
            else:
                made[id(layer)] = replace(layer) or _one(layer)
        return made[id(layer)]

    if isinstance(model, keras.Sequential):
        shape = tuple(model.input_shape)
        first = keras.Input(batch_shape=shape, dtype=model.inputs[0].dtype)
        same, call = keras.Sequential([first, *model.layers], name=model.name), None
    else:
        same, call = keras.Model(model.input, model.output, name=model.name), _called
    clone = keras.models.clone_model(same, clone_function=again, call_function=call)
    clone.trainable = model.trainable
    for layer, other in zip(same.layers, clone.layers):
        other.trainable = layer.trainable
    return clone


def _one(layer: Any) -> Any:
    if isinstance(layer, keras.layers.Lambda):
        # A `Lambda` has no weights, and a copy from its config would lose the
        # function's globals.
        return layer
    try:
        return type(layer).from_config(layer.get_config())
    except NotImplementedError as error:
        raise TypeError(
            f"Layer {layer.name!r} cannot be recreated, because {type(layer).__name__} has "
            f"no method get_config. Add that method; or, if you called to_plain, make a "
            f"plain model yourself and call to_plain(model, into=plain)."
        ) from error


def _called(layer: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls a cloned layer with the original call's arguments; omits a mask of None."""
    if kwargs.get("mask", 0) is None:
        del kwargs["mask"]
    return layer(*args, **kwargs)


def replace_batch_norm(model: keras.Model, groups: int = 8) -> keras.Model:
    """Replaces batch normalization by group normalization (arXiv:1803.08494).

    Batch normalization makes an example's output depend on the whole batch, so there
    are no per-example gradients. The new model keeps the scale and offset of each
    replaced layer, but not its moving mean and variance; all other weights stay the
    same. A pretrained model needs some further training.

    Args:
      model: Sequential or functional, built, not private.
      groups: number of groups of channels; if it does not divide a layer's channels,
        the largest smaller divisor is used. One group is layer normalization over an
        image.

    Returns:
      A new model, not compiled.

    Raises:
      TypeError: if the model is neither Sequential nor functional.
      ValueError: if it is not built, or groups is less than 1.
    """
    if not isinstance(model, keras.Sequential) and not hasattr(model, "operations"):
        raise TypeError(
            f"model must be Sequential or functional, but found {type(model).__name__}. "
            f"Replace its BatchNormalization layers by GroupNormalization yourself."
        )
    if not model.built:
        raise ValueError("The model must be built: make keras.Input its first layer.")
    groups = whole_number("groups", groups)

    def replaced(layer: Any) -> Any | None:
        if not isinstance(layer, keras.layers.BatchNormalization):
            return None
        channels = int(layer.moving_mean.shape[0])
        most = max(g for g in range(1, min(groups, channels) + 1) if channels % g == 0)
        return keras.layers.GroupNormalization(
            most,
            axis=layer.axis,
            epsilon=layer.epsilon,
            center=layer.center,
            scale=layer.scale,
            name=layer.name,
            dtype=layer.dtype_policy,
        )

    made = cloned(model, replaced)
    for layer, other in zip(all_layers(model), all_layers(made), strict=True):
        if not isinstance(layer, keras.Model):
            # In batch normalization, the moving mean and variance are the last weights.
            # Group normalization has none, so they are left out.
            other.set_weights(layer.get_weights()[: len(other.weights)])
    return made
