"""Functions that report the device and the compiler that code is being traced for."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.python.ops import control_flow_util


def device_kind() -> str:
    """Returns `CPU` or `GPU`: the type of device on which a new operation is placed.

    If an enclosing `tf.device` names a type, the function returns this type. Otherwise,
    it returns `GPU` if TensorFlow has a GPU. The result affects only memory layouts,
    never values: an operation on a device of the other type is slower, but correct.
    """
    # The device of `tf.zeros([])` has a type if an enclosing scope names one.
    named = tf.DeviceSpec.from_string(tf.zeros([]).device).device_type
    if named is not None:
        return str(named)
    return "GPU" if tf.config.list_logical_devices("GPU") else "CPU"


def traced_under_xla() -> bool:
    """Returns True while a function that XLA compiles is being traced."""
    graph = tf.compat.v1.get_default_graph()
    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))
