"""Exact per-example gradient clipping for Keras 3 models on TensorFlow."""

from tf_bandmf.keras.clipping.checks import check_supported
from tf_bandmf.keras.clipping.errors import ClippingMismatchError, UnsupportedModelError
from tf_bandmf.keras.clipping.gradients import ClippedGradients, clipped_gradient_sums
from tf_bandmf.keras.clipping.regularization import regularization_gradients
from tf_bandmf.keras.clipping.self_check import self_check

__all__ = [
    "ClippedGradients",
    "ClippingMismatchError",
    "UnsupportedModelError",
    "check_supported",
    "clipped_gradient_sums",
    "regularization_gradients",
    "self_check",
]
