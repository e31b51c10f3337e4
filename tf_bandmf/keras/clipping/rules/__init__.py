"""Norm rules: how each kind of layer yields per-example gradients."""

from collections.abc import Sequence
from typing import Any

from tf_bandmf.keras.clipping.rules.alone import AloneRule
from tf_bandmf.keras.clipping.rules.base import LayerCall, Rule
from tf_bandmf.keras.clipping.rules.convolution import (
    ConvolutionRule,
    DepthwiseConvolutionRule,
)
from tf_bandmf.keras.clipping.rules.dense import DenseRule, EinsumDenseRule
from tf_bandmf.keras.clipping.rules.embedding import EmbeddingRule
from tf_bandmf.keras.clipping.rules.generic import GenericRule
from tf_bandmf.keras.clipping.rules.normalization import (
    GroupNormalizationRule,
    LayerNormalizationRule,
    RMSNormalizationRule,
)

_RULES: tuple[Rule, ...] = (
    DenseRule(),
    EinsumDenseRule(),
    ConvolutionRule(),
    DepthwiseConvolutionRule(),
    EmbeddingRule(),
    LayerNormalizationRule(),
    GroupNormalizationRule(),
    RMSNormalizationRule(),
    GenericRule(),
)


def rule_for(layer: Any, variables: Sequence[Any]) -> Rule:
    """Returns the fastest rule that is exact for a layer.

    Args:
        layer: A built layer.
        variables: The layer's trainable variables.

    Returns:
        The rule; the generic one if no other applies.
    """
    return next(rule for rule in _RULES if rule.supports(layer, variables))


__all__ = ["AloneRule", "LayerCall", "Rule", "rule_for"]
