"""Configures TensorFlow with two logical CPUs, so tests can use several replicas.

TensorFlow must be configured before it runs its first operation.
"""

import gc
import os

# One thread suffices for the small matrices of the tests. Idle OpenBLAS threads would
# spin and waste most of the CPU time. OpenBLAS reads this variable when NumPy is
# imported, and child processes inherit it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
import tensorflow as tf

# The plugin `marks` implements the markers `attack`, `invariant` and `slow_cases`.
pytest_plugins = ["marks"]

# Tests neither read nor write the user's cache of optimized strategies.
os.environ["TF_BANDMF_CACHE"] = "off"

# TensorFloat-32 is the default on GPUs. Private training steps would turn it off and
# print a message, so the tests turn it off first.
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
    """Exempts imported modules from garbage collection: they are never freed."""
    gc.collect()
    gc.freeze()
    # High thresholds make garbage collection rare. Tracing creates hundreds of
    # thousands of objects, most of which live long, so collections would free little.
    gc.set_threshold(10_000, 10, 5)
