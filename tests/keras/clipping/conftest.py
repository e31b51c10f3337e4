"""Makes `clipping_reference` importable and two CPUs available; defines broken rules."""

import contextlib
import pathlib
import sys

import pytest
import tensorflow as tf

sys.path.insert(0, str(pathlib.Path(__file__).parent))

with contextlib.suppress(RuntimeError):
    # This fails if another test has started TensorFlow already; tests that need two
    # CPUs are then skipped.
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * 2,
    )


@pytest.fixture
def wrong_dense_rule(monkeypatch):
    """Replaces the rule of Dense by one that leaves out the bias."""
    from tf_bandmf.keras.clipping.rules import dense

    factors = dense.DenseRule.factors

    def without_bias(self, call, gradients):
        actual = dict(factors(self, call, gradients))
        actual.pop(id(call.layer.bias))
        return actual

    monkeypatch.setattr(dense.DenseRule, "factors", without_bias)
