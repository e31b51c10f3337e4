"""Exact per-example gradient clipping for Keras 3 models on TensorFlow."""

from tf_bandmf.keras.clipping.checks import check_supported
from tf_bandmf.keras.clipping.clipping_units import present_rows
from tf_bandmf.keras.clipping.data_errors import bad_values_become_nan
from tf_bandmf.keras.clipping.errors import ClippingMismatchError, UnsupportedModelError
from tf_bandmf.keras.clipping.gradients import (
    SUM_MARGIN,
    ClippedGradients,
    clipped_gradient_sums,
)
from tf_bandmf.keras.clipping.how_to_clip import is_loss_scale
from tf_bandmf.keras.clipping.independence import (
    register_per_example_layer,
    vouched_classes,
)
from tf_bandmf.keras.clipping.made_up import made_up
from tf_bandmf.keras.clipping.metric_writes import (
    metrics_change_no_weights,
    update_reads_no_metrics,
)
from tf_bandmf.keras.clipping.precision import check_matmul_precision
from tf_bandmf.keras.clipping.regularization import regularization_gradients
from tf_bandmf.keras.clipping.self_check import self_check

__all__ = [
    "SUM_MARGIN",
    "ClippedGradients",
    "ClippingMismatchError",
    "UnsupportedModelError",
    "bad_values_become_nan",
    "check_matmul_precision",
    "check_supported",
    "clipped_gradient_sums",
    "is_loss_scale",
    "made_up",
    "metrics_change_no_weights",
    "present_rows",
    "register_per_example_layer",
    "regularization_gradients",
    "self_check",
    "update_reads_no_metrics",
    "vouched_classes",
]
