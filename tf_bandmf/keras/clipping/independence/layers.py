"""Known layers, which give each example its own row and need no further analysis.

A layer is recognized by its exact class, its built-in `call` and its configuration. The
table also contains the classes for which the user vouches (see `registration`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from keras import layers

Shapes = Sequence[tuple[int, ...]]
Condition = Callable[[Any, Shapes], bool]


def _images(layer: Any, shapes: Shapes) -> bool:
    """Returns whether all tensors have rank 4; rank 3 would be a single image."""
    return all(len(shape) == 4 for shape in shapes)


def _vectors(layer: Any, shapes: Shapes) -> bool:
    """Returns whether the layer keeps rows separate.

    The layer may treat a vector as a single example, so the tensors must have at least
    two axes. Layers with the output mode "int" or "one_hot" never do so.
    """
    one_each = getattr(layer, "output_mode", None) in ("int", "one_hot")
    return one_each or all(len(shape) >= 2 for shape in shapes)


def _text(layer: Any, shapes: Shapes) -> bool:
    """Returns whether the length of a text's output is independent of other texts."""
    config = layer.get_config()
    padded = config["output_sequence_length"] is not None
    return padded or config["output_mode"] != "int"


def _always(layer: Any, shapes: Shapes) -> bool:
    return True


# KerasHub classes are listed by their full names, since KerasHub may not be installed.
_NAMES: dict[Condition, str] = {
    _images: "AutoContrast CenterCrop RandomBrightness RandomColorDegeneration "
    "RandomColorJitter RandomContrast RandomCrop RandomElasticTransform RandomErasing "
    "RandomFlip RandomGaussianBlur RandomGrayscale RandomHue RandomInvert "
    "RandomPerspective RandomPosterization RandomRotation RandomSaturation "
    "RandomSharpness RandomShear RandomTranslation RandomZoom Resizing Solarization",
    _vectors: "AdaptiveAveragePooling1D AdaptiveAveragePooling2D AdaptiveAveragePooling3D "
    "AdaptiveMaxPooling1D AdaptiveMaxPooling2D AdaptiveMaxPooling3D CategoryEncoding "
    "Discretization HashedCrossing Hashing IntegerLookup StringLookup",
    _text: "TextVectorization",
    _always: "keras_hub.src.models.deberta_v3.disentangled_self_attention."
    "DisentangledSelfAttention "
    "keras_hub.src.models.mixtral.mixtral_decoder.MixtralTransformerDecoder",
}
# Keys are classes, or full names of KerasHub classes. The name of a layer that this
# version of Keras lacks remains a string, which no class matches.
LAYERS: dict[type | str, Condition] = {
    getattr(layers, name, name): condition
    for condition, names in _NAMES.items()
    for name in names.split()
}


def knows(layer: Any, shapes: Shapes) -> bool:
    """Returns whether row i of a layer's result is known to depend only on example i.

    Args:
      layer: a built layer.
      shapes: the shapes of the tensors on which the layer is called.
    """
    kind = type(layer)
    names = kind, f"{kind.__module__}.{kind.__qualname__}"
    return any(LAYERS[name](layer, shapes) for name in names if name in LAYERS)
