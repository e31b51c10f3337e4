"""Replaces batch normalization by group normalization."""

from __future__ import annotations

from typing import Any

import keras

from tf_bandmf.accounting.checks import whole_number
from tf_bandmf.keras.model.cloning import cloned


def replace_batch_norm(model: keras.Model, groups: int = 8) -> keras.Model:
    """Replaces batch normalization by group normalization (arXiv:1803.08494).

    Batch normalization makes an example's output depend on the whole batch, so there
    are no per-example gradients. The new model has all other weights of the model, and
    the scale and offset of the replaced layers; their moving means and variances are
    dropped. A pretrained model needs some further training.

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
            f"Layers of a Sequential or functional model can be replaced, found "
            f"{type(model).__name__}. Use keras.layers.GroupNormalization in its code."
        )
    if not model.built:
        raise ValueError("The model must be built: begin it with keras.Input.")
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
    for layer, other in _pairs(model, made):
        if isinstance(layer, keras.layers.BatchNormalization):
            for name in ("gamma", "beta"):
                if getattr(layer, name) is not None:
                    getattr(other, name).assign(getattr(layer, name))
        else:
            other.set_weights(layer.get_weights())
    return made


def _pairs(model: keras.Model, other: keras.Model) -> list[tuple[Any, Any]]:
    """Layers that are no models, in both, each once."""
    found = []
    for layer, same in zip(model.layers, other.layers, strict=True):
        if isinstance(layer, keras.Model):
            found.extend(_pairs(layer, same))
        else:
            found.append((layer, same))
    return found
