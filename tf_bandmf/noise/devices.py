"""Functions that tell for which device and compiler an operation is being traced."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.python.ops import control_flow_util


def device_kind() -> str:
    """Returns `CPU` or `GPU`, as set by `tf.device`; by default the best available kind.

    Only memory layouts depend on the result, never values: an operation that is placed on
    another kind of device is slower, but correct.
    """
    # A new operation is placed on the device of the enclosing scope, if there is one.
    named = tf.DeviceSpec.from_string(tf.zeros([]).device).device_type
    if named is not None:
        return str(named)
    return "GPU" if tf.config.list_logical_devices("GPU") else "CPU"


def traced_under_xla() -> bool:
    """Returns True while a function that XLA compiles is being traced."""
    graph = tf.compat.v1.get_default_graph()
    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))
