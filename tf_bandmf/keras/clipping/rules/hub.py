"""Norm rules of layers of KerasHub, which need not be installed.

Classes are known by where they are: a rule never imports KerasHub. That they compute what
the rule takes them to is not what privacy rests on (the norm is that of what is added up),
and the self-check compares it with gradients of single examples.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_bandmf.keras.clipping.factors.base import Factor, Instantiated
from tf_bandmf.keras.clipping.rules.base import (
    LayerCall,
    LayerRule,
    PreActivationRule,
    kernel_shape,
    of_spread,
)
from tf_bandmf.keras.clipping.tensors.batches import reshape_examples
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.compat.keras_objects import bias_of

_LAYERS = "keras_hub.src.layers.modeling"
_MODELS = "keras_hub.src.models"
# Root mean square normalizations with `scale` and `epsilon`, over the last axis.
NORMALIZATIONS = (
    f"{_MODELS}.gemma.rms_normalization.RMSNormalization",
    f"{_MODELS}.gemma3.gemma3_layers.RMSNormalization",
    f"{_MODELS}.llama.llama_layernorm.LlamaLayerNorm",
)


class PositionEmbeddingRule(LayerRule):
    """`PositionEmbedding` from the first position on: each row is used once."""

    kinds = (f"{_LAYERS}.position_embedding.PositionEmbedding",)

    def weights(self, layer: Any) -> Sequence[Any]:
        return (layer.position_embeddings,)

    def factors_of(self, call: LayerCall, gradient: tf.Tensor) -> Mapping[int, Factor]:
        arguments = dict(zip(("start_index", "positions"), call.args[1:], strict=False))
        arguments |= call.kwargs
        first = arguments.get("start_index", 0)
        has_positions = arguments.get("positions") is not None
        if has_positions or not isinstance(first, int) or first != 0:
            raise UnsupportedModelError(
                f"Layer {call.layer.name!r} (PositionEmbedding) is called with positions "
                "or a start_index, of which per-example gradients are not implemented. "
                "Call it on whole sequences."
            )
        gradient = tf.cast(gradient, tf.float32)
        gradient = tf.reduce_sum(gradient, list(range(1, gradient.shape.rank - 2)))
        table = call.layer.position_embeddings
        missing = kernel_shape(table)[0] - tf.shape(gradient)[1]
        padded = tf.pad(gradient, [[0, 0], [0, missing], [0, 0]])
        return {id(table): Instantiated(reshape_examples(padded, *kernel_shape(table)))}


class MaskedLMHeadRule(PreActivationRule):
    """`MaskedLMHead`: its own bias; the layers in it have rules of their own."""

    kinds = (f"{_LAYERS}.masked_lm_head.MaskedLMHead",)
    opens = True

    def weights(self, layer: Any) -> Sequence[Any]:
        return (bias_of(layer),)

    def factors_of(self, call: LayerCall, gradient: tf.Tensor) -> Mapping[int, Factor]:
        return of_spread(bias_of(call.layer), gradient)
