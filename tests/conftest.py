"""Sets up two logical processors, so that tests can distribute work over replicas.

TensorFlow must be configured before its first operation.
"""

import gc
import os

# Idle OpenBLAS threads spin, which would take most of the processor time for the small
# matrices of the tests. OpenBLAS reads this variable when NumPy is imported; child
# processes inherit it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
import tensorflow as tf

# This plugin reads the markers `attack`, `invariant` and `slow_cases`.
pytest_plugins = ["marks"]

# Tests neither read nor write the user's cache of optimized strategies.
os.environ["TF_BANDMF_CACHE"] = "off"

# TensorFloat-32 is the default on GPUs. Private steps turn it off, with a message.
tf.config.experimental.enable_tensor_float_32_execution(False)
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * 2,
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Skips tests marked `on_cpu` on machines that have a GPU."""
    on_cpu = pytest.mark.skip(reason="checks the behavior without a GPU")
    for item in items:
        if tf.config.list_physical_devices("GPU") and item.get_closest_marker("on_cpu"):
            item.add_marker(on_cpu)


def pytest_collection_finish(session):
    """Exempts imported modules, which are never freed, from garbage collection."""
    gc.collect()
    gc.freeze()
    # Garbage collection runs rarely, because tracing creates hundreds of thousands of
    # mostly long-lived objects.
    gc.set_threshold(10_000, 10, 5)
