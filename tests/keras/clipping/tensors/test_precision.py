"""Tests that settings that make per-example norms inexact are undone or refused."""

import re
import types

import clipping_reference as reference
import pytest
import tensorflow as tf
from keras import layers

from tf_bandmf.keras.clipping.sums.clipped_sums import clipped_gradient_sums
from tf_bandmf.keras.clipping.tensors import precision

GPU = types.SimpleNamespace(device_type="GPU", name="/physical_device:GPU:0")
OPTION = tf.config.experimental


@pytest.fixture
def gpu(monkeypatch):
    """Makes TensorFlow report a visible GPU."""
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind=None: [GPU])


@pytest.fixture
def set_tensor_float_32():
    """Yields a function that switches TensorFloat-32, and restores the old setting."""
    before = OPTION.tensor_float_32_execution_enabled()
    yield OPTION.enable_tensor_float_32_execution
    OPTION.enable_tensor_float_32_execution(before)


def clip_some():
    model = reference.classifier(inputs=(4,))
    reference.traced(model, reference.normal(5, 4), reference.labels())


@pytest.mark.invariant(3)
def test_tensor_float_32_is_turned_off(gpu, set_tensor_float_32, capsys):
    set_tensor_float_32(True)
    clip_some()
    assert not OPTION.tensor_float_32_execution_enabled()
    assert "TensorFloat-32 is turned off" in capsys.readouterr().err


@pytest.mark.slow_cases("False")
@pytest.mark.parametrize("usual", [True, False])
@pytest.mark.invariant(17)
@pytest.mark.on_cpu
def test_the_setting_reaches_every_product_that_xla_compiles(
    usual, set_tensor_float_32
):
    # On a GPU, each product in the compiled program must request full precision itself.
    # Control: with TensorFloat-32 enabled (`usual`), no product requests it.
    def body(inputs):
        h = layers.Reshape((36, 8))(layers.Conv2D(8, 3, groups=2)(inputs))
        return layers.MultiHeadAttention(2, 4)(h, h)

    model = reference.functional((8, 8, 4), body)

    @tf.function(autograph=False, jit_compile=True)
    def sums(x, y):
        return clipped_gradient_sums(model, x, y, l2_norm_clip=1.0).sums

    set_tensor_float_32(usual)
    batch = tf.ones([5, 8, 8, 4]), tf.zeros([5], "int32")
    lines = sums.experimental_get_compiler_ir(*batch)(stage="hlo").splitlines()
    products = [line for line in lines if re.search(r" (dot|convolution)\(", line)]
    exact = ["operand_precision={highest,highest}" in line for line in products]
    assert len(products) > 12
    assert not any(exact) if usual else all(exact)


def test_reduced_precision_of_rewrites_and_of_onednn_is_refused(monkeypatch):
    set_options = tf.config.optimizer.set_experimental_options
    set_options({"auto_mixed_precision_onednn_bfloat16": True})
    try:
        with pytest.raises(RuntimeError, match="auto_mixed_precision"):
            clip_some()
    finally:
        set_options({"auto_mixed_precision_onednn_bfloat16": False})
    name = precision._VARIABLES[1]
    monkeypatch.setenv(name, "STRICT")
    clip_some()
    monkeypatch.setenv(name, "BF16")
    with pytest.raises(RuntimeError, match=name):
        clip_some()
