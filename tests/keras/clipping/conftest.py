"""Makes `clipping_reference` importable, and two CPUs for distribution strategies."""

import contextlib
import pathlib
import sys

import tensorflow as tf

sys.path.insert(0, str(pathlib.Path(__file__).parent))

with contextlib.suppress(RuntimeError):
    # Too late if another test has started TensorFlow already; those tests skip then.
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * 2,
    )
