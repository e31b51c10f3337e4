"""Changes or refuses process settings under which clipping would be wrong.

Some settings make TensorFlow round the operands of float32 products to TensorFloat-32,
bfloat16 or float16. The norm of a gradient and the released gradient are computed in
different ways, often by matrix products. Without the rounding, the relative error of
the computed norm is about 1e-6. With the rounding, it is at least about 1e-3, and has
no bound if terms cancel, so contributions could be larger than the plan assumes.
Layers, in contrast, may compute in reduced precision: this changes the gradient, but
not the norm to which it is clipped.
"""

from __future__ import annotations

import os
import sys

import tensorflow as tf

# Environment variables that let TensorFlow round the operands of float32 products.
_VARIABLES = (
    "TF_ENABLE_AUTO_MIXED_PRECISION",
    "TF_SET_ONEDNN_FPMATH_MODE",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "DNNL_DEFAULT_FPMATH_MODE",
)


def prepare_process() -> None:
    """Turns TensorFloat-32 off; refuses other settings that would make norms wrong.

    TensorFloat-32 is on by default for GPUs that have it; a message says that it is
    turned off. Devices are listed without initializing them, so that their memory can
    still be configured. Eager functions are refused because there would be no graph of
    the training step to analyze.

    Raises:
      RuntimeError: if such a setting is active; the message says how to change it.
    """
    if tf.config.functions_run_eagerly():
        raise RuntimeError(
            "Private training analyzes the graph of its step, so functions must not run "
            "eagerly. Call tf.config.run_functions_eagerly(False)."
        )
    precision = tf.config.experimental
    has_gpu = bool(tf.config.get_visible_devices("GPU"))
    if has_gpu and precision.tensor_float_32_execution_enabled():
        precision.enable_tensor_float_32_execution(False)
        print(
            "tf_bandmf: TensorFloat-32 is turned off in this process: norms would come "
            "out too small. For speed use the dtype policy mixed_bfloat16.",
            file=sys.stderr,
            flush=True,
        )
    options = tf.config.optimizer.get_experimental_options()
    names = [
        name for name, on in options.items() if on and "auto_mixed_precision" in name
    ]
    for name in _VARIABLES:
        if os.environ.get(name, "").upper() not in ("", "0", "STRICT"):
            names.append(name)
    if names:
        raise RuntimeError(
            f"Turn off {', '.join(names)}: with these settings, TensorFlow rounds the "
            f"operands of float32 products, so per-example norms would be wrong. Names in "
            f"capitals are environment variables: unset them. For other names, call tf."
            f"config.optimizer.set_experimental_options({{name: False}})."
        )
