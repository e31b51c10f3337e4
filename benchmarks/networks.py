"""Networks that people train, with data of their shapes, for `keras_steps.py`.

Random weights; nothing is downloaded. `TARGETS` are the ratios to the ordinary step (on
a CPU) that are aimed at.
"""

from __future__ import annotations

from typing import Any, Callable

import keras
import numpy as np
from keras import layers

BATCH_SIZES = {
    "resnet": 32,
    "wide_resnet": 8,
    "mobilenet_head": 16,
    "bert_tiny": 32,
    "lora": 16,
    "lstm": 64,
    "gru": 64,
}
LENGTH, BERT_VOCABULARY, GPT_VOCABULARY = 64, 30522, 8000
TARGETS = {
    "resnet": 1.6,
    "wide_resnet": 1.8,
    "mobilenet_head": 1.2,
    "bert_tiny": 1.25,
    "lora": 1.15,
    "lstm": 1.8,
    "gru": 1.8,
}


class StandardizedConv2D(layers.Conv2D):
    """A convolution whose kernel is standardized (Qiao et al., arXiv:1903.10520)."""

    @property
    def kernel(self) -> Any:
        weight = keras.ops.convert_to_tensor(self._kernel)
        mean, variance = keras.ops.moments(weight, axes=(0, 1, 2), keepdims=True)
        return (weight - mean) * keras.ops.rsqrt(variance + 1e-5)


def _residual(
    x: Any, filters: int, strides: int, convolution: Callable[..., Any]
) -> Any:
    h = layers.Activation("relu")(layers.GroupNormalization(8)(x))
    if x.shape[-1] != filters or strides != 1:
        x = convolution(filters, 1, strides=strides)(h)
    h = convolution(filters, 3, strides=strides, padding="same")(h)
    h = layers.Activation("relu")(layers.GroupNormalization(8)(h))
    return x + convolution(filters, 3, padding="same")(h)


def _residual_network(width: int, blocks: int, convolution: Any) -> keras.Model:
    inputs = keras.Input((32, 32, 3))
    x = convolution(16, 3, padding="same")(inputs)
    for stage, filters in enumerate((16 * width, 32 * width, 64 * width)):
        for block in range(blocks):
            strides = 2 if stage and not block else 1
            x = _residual(x, filters, strides, convolution)
    x = layers.Activation("relu")(layers.GroupNormalization(8)(x))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def resnet() -> keras.Model:
    """ResNet-14 with group normalization, 0.17 million parameters."""
    return _residual_network(1, 2, layers.Conv2D)


def wide_resnet() -> keras.Model:
    """WRN-16-4 with group normalization and weight standardization, 2.7 million."""
    return _residual_network(4, 2, StandardizedConv2D)


def mobilenet_head() -> keras.Model:
    """A frozen MobileNetV2 with a classifier that is trained."""
    base = keras.applications.MobileNetV2(
        (96, 96, 3), include_top=False, weights=None, pooling="avg"
    )
    base.trainable = False
    return keras.Sequential([base, layers.Dense(10)])


def bert_tiny() -> keras.Model:
    """BERT-tiny, all of its 4.4 million parameters trained."""
    import keras_hub

    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=BERT_VOCABULARY,
        num_layers=2,
        num_heads=2,
        hidden_dim=128,
        intermediate_dim=512,
        max_sequence_length=512,
    )
    return keras_hub.models.BertTextClassifier(backbone, num_classes=10)


def lora() -> keras.Model:
    """A GPT-2 of 4 layers with adapters of rank 8 at queries and values."""
    import keras_hub

    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=GPT_VOCABULARY,
        num_layers=4,
        num_heads=4,
        hidden_dim=256,
        intermediate_dim=1024,
        max_sequence_length=LENGTH,
    )
    model = keras_hub.models.GPT2CausalLM(backbone)
    backbone.enable_lora(8)
    return model


def _recurrent(layer: Any) -> keras.Model:
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = layer(layers.Embedding(1000, 64)(inputs))
    return keras.Model(inputs, layers.Dense(10)(x))


def lstm() -> keras.Model:
    return _recurrent(layers.LSTM(128))


def gru() -> keras.Model:
    return _recurrent(layers.GRU(128))


MODELS: dict[str, Callable[[], keras.Model]] = {
    "resnet": resnet,
    "wide_resnet": wide_resnet,
    "mobilenet_head": mobilenet_head,
    "bert_tiny": bert_tiny,
    "lora": lora,
    "lstm": lstm,
    "gru": gru,
}


def data(name: str, num_examples: int) -> tuple[Any, np.ndarray]:
    """Random inputs and classes, or next tokens."""
    rng = np.random.default_rng(0)
    classes = rng.integers(0, 10, num_examples).astype(np.int32)
    if name in ("resnet", "wide_resnet", "mobilenet_head"):
        side = 96 if name == "mobilenet_head" else 32
        x = rng.normal(size=(num_examples, side, side, 3)).astype(np.float32)
        return x, classes
    if name in ("lstm", "gru"):
        return rng.integers(0, 1000, (num_examples, LENGTH)).astype(np.int32), classes
    vocabulary = BERT_VOCABULARY if name == "bert_tiny" else GPT_VOCABULARY
    text = rng.integers(0, vocabulary, (num_examples, LENGTH + 1)).astype(np.int32)
    x = {"token_ids": text[:, :-1], "padding_mask": np.ones_like(text[:, :-1])}
    if name == "lora":
        return x, text[:, 1:]
    return {**x, "segment_ids": np.zeros_like(text[:, :-1])}, classes
