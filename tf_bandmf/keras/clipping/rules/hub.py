"""Norm rule of a KerasHub layer. It works whether or not KerasHub is installed.

The class is recognized by its full name, so the rule never imports KerasHub. Privacy
does not depend on whether the layer computes what the rule assumes, since clipping uses
the norm of the gradients that are actually summed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_bandmf.keras.clipping.factors.base import Factor
from tf_bandmf.keras.clipping.rules.base import (
    LayerCall,
    PreActivationRule,
    of_spread,
)
from tf_bandmf.keras.compat.keras_objects import bias_of


class MaskedLMHeadRule(PreActivationRule):
    """The rule for the bias of `MaskedLMHead`, whose inner layers have other rules."""

    kinds = ("keras_hub.src.layers.modeling.masked_lm_head.MaskedLMHead",)
    opens = True

    def weights(self, layer: Any) -> Sequence[Any]:
        return (bias_of(layer),)

    def factors(self, call: LayerCall, gradient: tf.Tensor) -> Mapping[int, Factor]:
        return of_spread(bias_of(call.layer), gradient)
