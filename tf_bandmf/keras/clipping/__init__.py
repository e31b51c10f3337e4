"""Exact per-example gradient clipping for Keras 3 models on TensorFlow."""

from tf_bandmf.keras.clipping.factors.base import Factor, Instantiated, Layout, Product
from tf_bandmf.keras.clipping.factors.precision import (
    check_process,
    turn_tensor_float_32_off,
)
from tf_bandmf.keras.clipping.forward.looked_up import LookedUp
from tf_bandmf.keras.clipping.forward.supported import check_supported
from tf_bandmf.keras.clipping.independence.map_examples import map_examples
from tf_bandmf.keras.clipping.independence.registration import (
    register_per_example_layer,
    vouched_classes,
)
from tf_bandmf.keras.clipping.independence.state import NotIndependent
from tf_bandmf.keras.clipping.proof.inference import measured_rows
from tf_bandmf.keras.clipping.proof.judge import (
    PREPROCESSING,
    layers_executed_alone,
)
from tf_bandmf.keras.clipping.proof.regularizers import regularization_gradients
from tf_bandmf.keras.clipping.rules import LayerCall, Rule, register_rule
from tf_bandmf.keras.clipping.rules.base import OneTapRule
from tf_bandmf.keras.clipping.rules.embedding import is_lookup_table
from tf_bandmf.keras.clipping.sums.clipped_sums import (
    OUTCOMES,
    ClippedGradients,
    clipped_gradient_sums,
    find_layers_alone,
)
from tf_bandmf.keras.clipping.sums.self_check import needs_self_check, self_check
from tf_bandmf.keras.clipping.sums.settings import Clipping, check_loss_scale
from tf_bandmf.keras.clipping.tensors.errors import (
    OF_THE_MACHINE,
    ClippingMismatchError,
    UnsupportedModelError,
)
from tf_bandmf.keras.clipping.tensors.made_up import made_up
from tf_bandmf.keras.clipping.tensors.multi_row import present_rows
from tf_bandmf.keras.clipping.tensors.variables import Same

__all__ = [
    "OF_THE_MACHINE",
    "OUTCOMES",
    "PREPROCESSING",
    "ClippedGradients",
    "Clipping",
    "ClippingMismatchError",
    "Factor",
    "Instantiated",
    "LayerCall",
    "Layout",
    "LookedUp",
    "NotIndependent",
    "OneTapRule",
    "Product",
    "Rule",
    "Same",
    "UnsupportedModelError",
    "check_loss_scale",
    "check_process",
    "check_supported",
    "needs_self_check",
    "clipped_gradient_sums",
    "find_layers_alone",
    "is_lookup_table",
    "layers_executed_alone",
    "made_up",
    "map_examples",
    "measured_rows",
    "present_rows",
    "register_per_example_layer",
    "register_rule",
    "regularization_gradients",
    "self_check",
    "turn_tensor_float_32_off",
    "vouched_classes",
]
