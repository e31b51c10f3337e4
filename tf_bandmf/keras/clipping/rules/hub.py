"""Norm rule of a layer of KerasHub, which need not be installed.

The class is recognized by its module path: a rule never imports KerasHub. Privacy does not
depend on whether the layer computes what the rule assumes: clipping uses the norm of the
gradients that are added up.
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
    """The rule of the bias of `MaskedLMHead`; the layers inside have their own rules."""

    kinds = ("keras_hub.src.layers.modeling.masked_lm_head.MaskedLMHead",)
    opens = True

    def weights(self, layer: Any) -> Sequence[Any]:
        return (bias_of(layer),)

    def factors_of(self, call: LayerCall, gradient: tf.Tensor) -> Mapping[int, Factor]:
        return of_spread(bias_of(call.layer), gradient)
