"""Settings of the process that would make per-example norms wrong are refused."""

import types

import clipping_reference as reference
import pytest
import tensorflow as tf

from tf_bandmf.keras.clipping import check_matmul_precision
from tf_bandmf.keras.clipping.factors import precision

GPU = types.SimpleNamespace(device_type="GPU", name="/physical_device:GPU:0")


@pytest.fixture
def gpu(monkeypatch):
    """Pretends that there is a GPU of a compute capability."""

    def pretend(details):
        config = tf.config
        monkeypatch.setattr(config, "get_visible_devices", lambda kind=None: [GPU])
        monkeypatch.setattr(
            config.experimental, "get_device_details", lambda device: details
        )

    return pretend


def clipped():
    model = reference.classifier(inputs=(4,))
    x = reference.sequences()[:, 0]
    return reference.traced(model, x, reference.labels())


@pytest.mark.parametrize("details", [{"compute_capability": (8, 0)}, {}])
@pytest.mark.invariant(3)
def test_tensor_float_32_is_refused(gpu, details):
    clipped()
    gpu(details)
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    try:
        tf.config.experimental.enable_tensor_float_32_execution(True)
        with pytest.raises(RuntimeError, match="enable_tensor_float_32_execution"):
            clipped()
        tf.config.experimental.enable_tensor_float_32_execution(False)
        clipped()
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)


def test_a_gpu_without_tensor_float_32_is_taken(gpu):
    gpu({"compute_capability": (7, 5)})
    check_matmul_precision()


def test_the_graph_rewrite_to_mixed_precision_is_refused():
    option = "auto_mixed_precision_onednn_bfloat16"
    tf.config.optimizer.set_experimental_options({option: True})
    try:
        with pytest.raises(RuntimeError, match="auto_mixed_precision"):
            clipped()
    finally:
        tf.config.optimizer.set_experimental_options({option: False})
    clipped()


def test_reduced_precision_of_onednn_is_refused(monkeypatch):
    name = precision._FPMATH_MODES[0]
    monkeypatch.setenv(name, "STRICT")
    clipped()
    monkeypatch.setenv(name, "BF16")
    with pytest.raises(RuntimeError, match=name):
        clipped()
