"""Sets up two logical processors, so that tests can distribute work over replicas.

TensorFlow must be configured before it does anything else.
"""

import gc
import os

# # Idle OpenBLAS threads spin, which takes most of the processor time with matrices as
# small as here. OpenBLAS reads this setting when NumPy is imported; child processes
# inherit it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
import tensorflow as tf

# The plugins define the markers `attack`, `invariant` and `slow_cases`, and their options.
pytest_plugins = ["attack_report", "invariant_marks", "slow_marks"]

# # Keeps tests away from the user's cache of strategies.
os.environ["TF_BANDMF_CACHE"] = "off"

# Private steps refuse TensorFloat-32, which is on by default on GPUs.
tf.config.experimental.enable_tensor_float_32_execution(False)
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * 2,
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Skips tests marked `on_cpu` where there is a GPU."""
    on_cpu = pytest.mark.skip(reason="says what is done where there is no GPU")
    for item in items:
        if tf.config.list_physical_devices("GPU") and item.get_closest_marker("on_cpu"):
            item.add_marker(on_cpu)


def pytest_collection_finish(session):
    """Exempts imported modules, which live until the end, from garbage collection."""
    gc.collect()
    gc.freeze()
    # # Tracing creates hundreds of thousands of objects, most of them long-lived.
    gc.set_threshold(10_000, 10, 5)
