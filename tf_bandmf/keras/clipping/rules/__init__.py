"""Norm rules, which compute per-example gradients for each kind of layer."""

from collections.abc import Sequence
from typing import Any

import keras

from tf_bandmf.keras.clipping.rules.base import LayerCall as LayerCall
from tf_bandmf.keras.clipping.rules.base import Rule as Rule
from tf_bandmf.keras.clipping.rules.convolution import ConvolutionRule
from tf_bandmf.keras.clipping.rules.dense import DenseRule, MaskedLMHeadRule
from tf_bandmf.keras.clipping.rules.embedding import EmbeddingRule
from tf_bandmf.keras.clipping.rules.kernel_functions import KernelFunctionRule
from tf_bandmf.keras.clipping.rules.normalization import NormalizationRule
from tf_bandmf.keras.clipping.rules.per_example import PerExampleRule as PerExampleRule
from tf_bandmf.keras.clipping.rules.recurrent import RecurrentRule

_RULES: list[Rule] = [
    DenseRule(),
    ConvolutionRule(),
    EmbeddingRule(),
    NormalizationRule(),
    RecurrentRule(),
    KernelFunctionRule(DenseRule(), keras.layers.Dense),
    KernelFunctionRule(ConvolutionRule(), *ConvolutionRule.kinds),
    MaskedLMHeadRule(),
    PerExampleRule(),
]


def rule_for(layer: Any, variables: Sequence[Any], own: Sequence[Any] = ()) -> Rule:
    """Returns the fastest rule that is exact for a layer.

    Args:
      layer: a built layer.
      variables: the trainable variables of the layer and its inner layers.
      own: those of the variables that the layer itself owns. Rules with `Rule.opens`
        cover only these.

    Returns:
      The rule; `PerExampleRule` if no other applies.
    """
    return next(
        rule
        for rule in _RULES
        if (own or not rule.opens)
        and rule.supports(layer, own if rule.opens else variables)
    )


def register_rule(rule: Rule) -> Rule:
    """Registers a rule for custom layers, which takes precedence over all others.

    A rule says for which layers it is exact (`supports`), asks in the forward pass for
    the gradients of some tensors, and returns the per-example gradients in factored
    form. The self-check of private training compares these per-example gradients with
    the gradients of single examples.

    Args:
      rule: an instance of a subclass of `Rule`.

    Returns:
      The rule.

    Raises:
      TypeError: if `rule` is not an instance of `Rule`.
    """
    if not isinstance(rule, Rule):
        raise TypeError(f"rule must be an instance of class Rule, but found {rule!r}.")
    _RULES.insert(0, rule)
    return rule
