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
    OneTapRule,
    PreActivationRule,
    kernel_shape,
    owns_only,
    reduce_to_shape,
)
from tf_bandmf.keras.clipping.tensors.batches import reshape_examples
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.compat.keras_objects import bias_of

_LAYERS = "keras_hub.src.layers.modeling"
_MODELS = "keras_hub.src.models"
# Root mean square normalizations with `scale` and `epsilon`, over the last axis.
_NORMALIZATIONS = frozenset(
    {
        f"{_MODELS}.gemma.rms_normalization.RMSNormalization",
        f"{_MODELS}.gemma3.gemma3_layers.RMSNormalization",
        f"{_MODELS}.llama.llama_layernorm.LlamaLayerNorm",
    }
)


def _is(layer: Any, *names: str) -> bool:
    """Whether a layer is exactly of a class of one of these names, `call` untouched."""
    name = f"{type(layer).__module__}.{type(layer).__qualname__}"
    return name in names and "call" not in vars(layer)


class PositionEmbeddingRule(OneTapRule):
    """`PositionEmbedding` from the first position on: each row is used once."""

    def supports(self, layer: Any, variables: Sequence[Any]) -> bool:
        return _is(layer, f"{_LAYERS}.position_embedding.PositionEmbedding") and (
            owns_only(variables, layer.position_embeddings)
        )

    def factors_of(self, call: LayerCall, gradient: tf.Tensor) -> Mapping[int, Factor]:
        first = (
            call.args[1] if len(call.args) > 1 else call.kwargs.get("start_index", 0)
        )
        positions = call.args[2] if len(call.args) > 2 else call.kwargs.get("positions")
        if positions is not None or not isinstance(first, int) or first != 0:
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


class HubNormalizationRule(OneTapRule):
    """Root mean square normalizations: output = (scale, or 1 + scale) * normalized."""

    def supports(self, layer: Any, variables: Sequence[Any]) -> bool:
        return _is(layer, *_NORMALIZATIONS) and owns_only(variables, layer.scale)

    def factors_of(self, call: LayerCall, gradient: tf.Tensor) -> Mapping[int, Factor]:
        inputs = tf.cast(call.inputs, tf.float32)
        squares = tf.reduce_mean(tf.square(inputs), axis=-1, keepdims=True)
        normalized = inputs * tf.math.rsqrt(squares + call.layer.epsilon)
        total = reduce_to_shape(
            tf.cast(gradient, tf.float32) * normalized, kernel_shape(call.layer.scale)
        )
        return {id(call.layer.scale): Instantiated(total)}


class MaskedLMHeadRule(PreActivationRule):
    """`MaskedLMHead`: its own bias; the layers in it have rules of their own."""

    opens = True

    def supports(self, layer: Any, variables: Sequence[Any]) -> bool:
        return _is(layer, f"{_LAYERS}.masked_lm_head.MaskedLMHead") and owns_only(
            variables, bias_of(layer)
        )

    def factors_of(self, call: LayerCall, gradient: tf.Tensor) -> Mapping[int, Factor]:
        bias = bias_of(call.layer)
        return {id(bias): Instantiated(reduce_to_shape(gradient, kernel_shape(bias)))}
