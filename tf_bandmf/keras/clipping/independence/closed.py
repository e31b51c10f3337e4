"""The closed list: Keras' layers that are known to act on each example alone.

A layer belongs to it by its exact class, with `call` and everything else that it runs as
Keras wrote them, and by its configuration: axes are not that of the batch, activations
and inner layers are in the list too, inputs have the ranks that it was written for (image
layers take a tensor of rank 3 for a single image). All others are analysed.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tf_bandmf.keras.clipping.independence.registration import is_vouched
from tf_bandmf.keras.compat.keras_objects import all_layers, attention_axes

# Ranks of a call's tensors, in order; None for a layer inside of one in the list, which
# calls it on tensors that have the batch first and two more axes at least.
Ranks = Union[Sequence[int], None]
_INSIDE = (3,)
Condition = Callable[[Any, Ranks], bool]


def _always(layer: Any, ranks: Ranks) -> bool:
    return True


def _rows(layer: Any, ranks: Ranks) -> bool:
    """The last axis is not that of the batch."""
    return all(rank >= 2 for rank in ranks or _INSIDE)


def _masking(layer: Any, ranks: Ranks) -> bool:
    """What is masked is one number: an array could add an axis."""
    return np.ndim(layer.mask_value) == 0 and _rows(layer, ranks)


def _rescaling(layer: Any, ranks: Ranks) -> bool:
    """Scale and offset have fewer axes than an input: the first one is the batch."""
    most = max(np.ndim(layer.scale), np.ndim(layer.offset))
    return all(most < rank for rank in ranks or _INSIDE)


def _axes(layer: Any, ranks: Ranks) -> bool:
    """Axes are not that of the batch."""
    axis = layer.axis
    chosen = [axis] if isinstance(axis, int) else list(axis or [])
    if ranks is None:
        return (
            all(a > 0 or a > -_INSIDE[0] for a in chosen if a != 0) and 0 not in chosen
        )
    return all(-rank < a < rank and a % rank != 0 for rank in ranks for a in chosen)


def _same_ranks(layer: Any, ranks: Ranks) -> bool:
    return ranks is not None and len(set(ranks)) == 1 and ranks[0] >= 2


def _images(layer: Any, ranks: Ranks) -> bool:
    return ranks is not None and all(rank == 4 for rank in ranks)


def _sequences(layer: Any, ranks: Ranks) -> bool:
    if ranks is None:
        return False
    return all(rank == 3 for rank in ranks[:2]) and all(rank >= 2 for rank in ranks)


def _attention(layer: Any, ranks: Ranks) -> bool:
    axes = attention_axes(layer)
    chosen = [axes] if isinstance(axes, int) else list(axes or [1])
    if ranks is None:
        return False
    return ranks[0] >= 3 and all(0 < axis < ranks[0] - 1 for axis in chosen)


def _dot(layer: Any, ranks: Ranks) -> bool:
    if ranks is None:
        return False
    axes = [layer.axes] * 2 if isinstance(layer.axes, int) else list(layer.axes)
    return all(a % rank != 0 for a, rank in zip(axes, ranks, strict=False))


def _einsum(layer: Any, ranks: Ranks) -> bool:
    """The batch is the first axis of input and output, and not one of the kernel."""
    left, _, output = layer.equation.replace(" ", "").partition("->")
    inputs, _, kernel = left.partition(",")
    if inputs.startswith("..."):
        return output.startswith("...") and "..." not in kernel
    first = inputs[:1]
    return (
        first.isalpha()
        and output.startswith(first)
        and first not in kernel + output[1:] + inputs[1:]
        and "..." not in kernel
    )


def _frozen(layer: Any, ranks: Ranks) -> bool:
    return not layer.trainable and _axes(layer, ranks)


def _recurrent(layer: Any, ranks: Ranks) -> bool:
    return not layer.stateful


def _over_time(layer: Any, ranks: Ranks) -> bool:
    if ranks is None:
        return False
    inner = layer.layer
    return not getattr(inner, "stateful", False) and acts_on_each_example(
        inner, [rank - 1 for rank in ranks[:1]]
    )


_IMAGE_LAYERS = (
    "Resizing CenterCrop RandomFlip RandomRotation RandomZoom RandomTranslation "
    "RandomContrast RandomBrightness RandomCrop"
).split()
_CONDITIONS: dict[str, Condition] = {
    **dict.fromkeys(
        (
            "Dense Embedding ReversibleEmbedding Conv1D Conv2D Conv3D Conv1DTranspose "
            "Conv2DTranspose Conv3DTranspose DepthwiseConv1D DepthwiseConv2D "
            "SeparableConv1D SeparableConv2D PReLU ReLU LeakyReLU ELU "
            "Identity InputLayer Flatten Reshape Permute RepeatVector "
            "Dropout GaussianDropout GaussianNoise AlphaDropout SpatialDropout1D "
            "SpatialDropout2D SpatialDropout3D MaxPooling1D MaxPooling2D MaxPooling3D "
            "AveragePooling1D AveragePooling2D AveragePooling3D GlobalMaxPooling1D "
            "GlobalMaxPooling2D GlobalMaxPooling3D GlobalAveragePooling1D "
            "GlobalAveragePooling2D GlobalAveragePooling3D Cropping1D Cropping2D "
            "Cropping3D ZeroPadding1D ZeroPadding2D ZeroPadding3D UpSampling1D "
            "UpSampling2D UpSampling3D LSTMCell GRUCell SimpleRNNCell StackedRNNCells "
            "Bidirectional"
        ).split(),
        _always,
    ),
    "Activation": _rows,
    "Masking": _masking,
    "Rescaling": _rescaling,
    **dict.fromkeys("LSTM GRU SimpleRNN RNN".split(), _recurrent),
    **dict.fromkeys(
        "Add Subtract Multiply Average Maximum Minimum".split(), _same_ranks
    ),
    **dict.fromkeys(
        (
            "LayerNormalization RMSNormalization UnitNormalization GroupNormalization "
            "Softmax Concatenate Normalization"
        ).split(),
        _axes,
    ),
    **dict.fromkeys(_IMAGE_LAYERS, _images),
    **dict.fromkeys("Attention AdditiveAttention".split(), _sequences),
    "GroupQueryAttention": _sequences,
    "MultiHeadAttention": _attention,
    "Dot": _dot,
    "EinsumDense": _einsum,
    "BatchNormalization": _frozen,
    "TimeDistributed": _over_time,
}
# Classes with the `call` that Keras gave them when this was imported.
_CLASSES: dict[type, tuple[Any, Condition]] = {
    getattr(layers, name): (getattr(layers, name).call, condition)
    for name, condition in _CONDITIONS.items()
    if hasattr(layers, name)
}
# These keep a mask of the rank of a matrix for all examples.
SHARED_MASKS = (layers.MultiHeadAttention, layers.GroupQueryAttention)
_ATTENTION = (
    layers.MultiHeadAttention,
    layers.GroupQueryAttention,
    layers.Attention,
    layers.AdditiveAttention,
)
# Layers that an activation may be: each entry by itself, whatever the rank is.
_ENTRYWISE = (layers.ReLU, layers.LeakyReLU, layers.ELU, layers.Identity)
# Functions that stand in for the `call` of a layer while it is recorded -> that `call`.
_replaced: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
# Keras' own wrappers, which every layer has.
_REPLACED_BY_KERAS = frozenset({"build", "quantize", "call"})
_ACTIVATIONS = frozenset(
    id(function)
    for name, function in vars(keras.activations).items()
    if callable(function) and name not in ("get", "serialize", "deserialize")
)


def acts_on_each_example(layer: Any, ranks: Ranks | None, call: Any = None) -> bool:
    """Whether a layer is known to act on each example alone.

    Args:
      layer: a built layer.
      ranks: of the tensors it is called on; None for layers inside of others in the
        list, which call them as Keras does. Their own configuration counts all the same.
      call: the layer's own `call` if another one is in its place now.
    """
    if is_vouched(layer):
        return True
    if not is_as_keras_wrote(layer, call) or ranks == []:
        return False
    _, condition = _CLASSES[type(layer)]
    if not condition(layer, ranks):
        return False
    inner = all_layers(layer, include_self=False, recursive=False)
    if isinstance(layer, layers.TimeDistributed):
        inner = []  # with ranks, in its condition
    return all(
        acts_on_each_example(part, None) and not getattr(part, "stateful", False)
        for part in inner
    )


def is_as_keras_wrote(layer: Any, call: Any = None) -> bool:
    """Whether a layer is of a class in the list and runs nothing but Keras' own code.

    Args:
      layer: a built layer.
      call: its own `call` if another one is in its place now.
    """
    known = _CLASSES.get(type(layer))
    if known is None:
        return is_vouched(layer)
    call = layer.call if call is None else call
    call = _replaced.get(call, call)
    if getattr(call, "__func__", None) is not known[0]:
        return False
    if not _is_untouched(layer) or not _is_known_activation_only(layer):
        return False
    inner = all_layers(layer, include_self=False, recursive=False)
    return all(is_as_keras_wrote(part) for part in inner)


def crossing_masks(
    layer: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Any]:
    """Masks of a call of attention whose rows would meet all examples.

    Keras broadcasts a mask to the scores from its last axis on: one of shape [B, T] where
    [B, T, S] is asked for gives each example the masks of all.

    Args:
      layer: in the closed list.
      args: of its call.
      kwargs: of its call.

    Returns:
      Tensors that must not be of examples.
    """
    if not isinstance(layer, _ATTENTION):
        return []
    signature = inspect.signature(type(layer).call)
    found = []
    for name, value in signature.bind(layer, *args, **kwargs).arguments.items():
        if "mask" not in name:
            continue
        for mask in keras.tree.flatten(value):
            if not tf.is_tensor(mask):
                continue
            rank = mask.shape.rank
            is_right = rank is not None and (
                rank >= 3 if name == "attention_mask" else rank == 2
            )
            if not is_right:
                found.append(mask)
    return found


def note_replacement(replacement: Any, call: Any) -> None:
    """Notes that a function calls a layer's own `call`, and records it."""
    _replaced[replacement] = call


def _is_untouched(layer: Any) -> bool:
    """Whether no method was replaced on the object."""
    for name, value in vars(layer).items():
        if isinstance(value, keras.Variable):
            if type(value) is not keras.Variable:
                return False
        elif tf.is_tensor(value) and hasattr(value, "op"):
            return False  # A tensor of some graph: what is it doing here?
        if name in _REPLACED_BY_KERAS or not callable(value):
            continue
        if callable(getattr(type(layer), name, None)):
            return False
    generator = getattr(layer, "seed_generator", None)
    return generator is None or type(generator) is keras.random.SeedGenerator


def _is_known_activation_only(layer: Any) -> bool:
    for name in ("activation", "recurrent_activation", "_activation"):
        function = vars(layer).get(name)
        if function is None or id(function) in _ACTIVATIONS:
            continue
        if isinstance(function, _ENTRYWISE) and acts_on_each_example(function, None):
            continue
        return False
    return True
