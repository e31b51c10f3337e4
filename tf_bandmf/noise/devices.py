"""The kind of device, and the compiler, that an operation is being traced for."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.python.ops import control_flow_util


def device_kind() -> str:
    """Returns `CPU` or `GPU`, as set by `tf.device`; by default the best kind there is.

    Only layouts depend on it, and these change no number: operations that are placed
    elsewhere are slower there, but correct.
    """
    # An operation that is made here is on the device of the scope, if there is one.
    named = tf.DeviceSpec.from_string(tf.zeros([]).device).device_type
    if named is not None:
        return str(named)
    return "GPU" if tf.config.list_logical_devices("GPU") else "CPU"


def traced_under_xla() -> bool:
    """Tells whether this is traced into a function that XLA compiles."""
    graph = tf.compat.v1.get_default_graph()
    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))
