"""Settings of the process that would make per-example norms wrong are refused."""

import re
import types

import clipping_reference as reference
import keras
import pytest
import tensorflow as tf
from keras import layers

from tf_bandmf.keras import make_private
from tf_bandmf.keras.clipping import check_matmul_precision, clipped_gradient_sums
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


@pytest.fixture
def set_tensor_float_32():
    """Sets TensorFlow's option; after the test it is what it was."""
    option = tf.config.experimental
    before = option.tensor_float_32_execution_enabled()
    yield option.enable_tensor_float_32_execution
    option.enable_tensor_float_32_execution(before)


def clipped():
    model = reference.classifier(inputs=(4,))
    x = reference.sequences()[:, 0]
    return reference.traced(model, x, reference.labels())


@pytest.mark.slow_cases("details1")
@pytest.mark.parametrize("details", [{"compute_capability": (8, 0)}, {}])
@pytest.mark.invariant(3)
def test_tensor_float_32_is_refused(gpu, details, set_tensor_float_32):
    clipped()
    gpu(details)
    set_tensor_float_32(True)
    with pytest.raises(RuntimeError, match="enable_tensor_float_32_execution"):
        clipped()
    set_tensor_float_32(False)
    clipped()


def test_make_private_turns_it_off_and_says_so(gpu, set_tensor_float_32, capsys):
    is_on = tf.config.experimental.tensor_float_32_execution_enabled
    set_tensor_float_32(True)
    gpu({"compute_capability": (7, 5)})
    make_private(reference.classifier(inputs=(4,)))
    assert is_on() and not capsys.readouterr().err
    gpu({"compute_capability": (9, 0)})
    make_private(reference.classifier(inputs=(4,)))
    assert not is_on()
    assert "TensorFloat-32 is turned off" in capsys.readouterr().err
    # Whoever turns it on again is refused.
    set_tensor_float_32(True)
    with pytest.raises(RuntimeError, match="enable_tensor_float_32_execution"):
        clipped()


@pytest.mark.slow_cases("False")
@pytest.mark.parametrize("usual", [True, False])
@pytest.mark.invariant(17)
@pytest.mark.on_cpu
def test_the_setting_reaches_every_product_that_xla_compiles(
    usual, set_tensor_float_32
):
    # In the program, where GPUs find it; True is the control.
    inputs = keras.Input((8, 8, 4))
    h = layers.Conv2D(8, 3, groups=2)(inputs)
    h = layers.Reshape((36, 8))(h)
    h = layers.MultiHeadAttention(2, 4)(h, h)
    model = keras.Model(inputs, layers.Dense(3)(layers.Flatten()(h)))
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    @tf.function(autograph=False, jit_compile=True)
    def sums(x, y):
        return clipped_gradient_sums(model, x, y, l2_norm_clip=1.0).sums

    set_tensor_float_32(usual)
    ir = sums.experimental_get_compiler_ir(
        tf.ones([5, 8, 8, 4]), tf.zeros([5], "int32")
    )
    lines = ir(stage="hlo").splitlines()
    products = [line for line in lines if re.search(r" (dot|convolution)\(", line)]
    exact = ["operand_precision={highest,highest}" in line for line in products]
    assert len(products) > 12
    assert not any(exact) if usual else all(exact)


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
