"""Every kind of layer against gradients of the examples one by one."""

import os
import subprocess
import sys

import clipping_reference as reference
import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf.keras.clipping.rules import rule_for
from tf_bandmf.keras.clipping.rules.kernel_functions import KernelFunctionRule

layers = keras.layers


class ClassToken(layers.Layer):
    """A weight that is repeated for every example of the batch."""

    def build(self, shape):
        self.token = self.add_weight(shape=(1, 1, shape[-1]), initializer="normal")

    def call(self, x):
        shape = keras.ops.shape(x)
        token = keras.ops.broadcast_to(self.token, (shape[0], 1, shape[2]))
        return keras.ops.concatenate([token, x], axis=1)


class Block(layers.Layer):
    """Layers and a weight of its own in one layer."""

    def __init__(self):
        super().__init__()
        self.inner = layers.Dense(4, activation="tanh")

    def build(self, shape):
        self.inner.build(shape)
        self.gate = self.add_weight(shape=(), initializer="ones")

    def call(self, x):
        return x + self.gate * self.inner(x)


class SoftmaxHead(layers.Layer):
    """A custom layer that ends with a softmax."""

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1], 3), initializer="normal")

    def call(self, x):
        return keras.ops.softmax(20.0 * x @ self.w)


class DenseSubclass(layers.Dense):
    """Computes something else with a kernel of the same name."""

    def call(self, inputs):
        return super().call(inputs) + keras.ops.sum(self.kernel**2)


IMAGE_LAYERS = {
    "conv_strided_same": lambda: layers.Conv2D(4, 3, strides=(2, 3), padding="same"),
    "conv_pointwise_strided": lambda: layers.Conv2D(4, 1, strides=2),
    "conv_large": lambda: layers.Conv2D(1600, 3, strides=3),
    "depthwise": lambda: layers.DepthwiseConv2D(3, depth_multiplier=2),
    "depthwise_strided": lambda: layers.DepthwiseConv2D(3, strides=2, padding="same"),
    "conv_groups": lambda: layers.Conv2D(6, 3, strides=2, groups=3, padding="same"),
    "conv_transpose": lambda: layers.Conv2DTranspose(3, 3, strides=2),
    "group_norm": lambda: layers.GroupNormalization(groups=3),
    "instance_norm": lambda: layers.GroupNormalization(groups=-1, scale=False),
    "layer_norm": lambda: layers.LayerNormalization(),
    "layer_norm_axes": lambda: layers.LayerNormalization(axis=[1, 3]),
    "rms_norm": lambda: layers.RMSNormalization(),
    "prelu": lambda: layers.PReLU(shared_axes=[1, 2]),
    "separable": lambda: layers.SeparableConv2D(4, 3),
    "dense_rank_4": lambda: layers.Dense(4, activation="gelu"),
}

# By how their shapes let the gradients of their kernels be formed.
CONVOLUTIONS = {
    "points": lambda: layers.Conv2D(7, 1),
    "few_positions": lambda: layers.Conv2D(7, 3, strides=3),
    "groups": lambda: layers.Conv2D(7, 3),
    "groups_same": lambda: layers.Conv2D(7, (4, 3), padding="same"),
    "groups_strided": lambda: layers.Conv2D(7, (2, 3), strides=2, padding="same"),
    "many_channels": lambda: layers.Conv2D(700, 2, padding="same"),
    "many_channels_strided": lambda: layers.Conv2D(700, 2, strides=2),
    "dilated": lambda: layers.Conv2D(7, 3, dilation_rate=2),
}

SEQUENCE_LAYERS = {
    "dense_rank_3": lambda: layers.Dense(4),
    "dense_rank_3_wide": lambda: layers.Dense(11000, use_bias=False),
    "conv_causal": lambda: layers.Conv1D(
        3, 3, padding="causal", dilation_rate=2, activation="relu"
    ),
    "depthwise_1d": lambda: layers.DepthwiseConv1D(3, dilation_rate=2, padding="same"),
    "einsum_heads": lambda: layers.EinsumDense(
        "abc,cde->abde", output_shape=(6, 2, 3), bias_axes="de"
    ),
    "einsum_groups": lambda: layers.EinsumDense(
        "abc,cb->abc", output_shape=(6, 4), bias_axes="b"
    ),
    "einsum_batched_kernel": lambda: layers.EinsumDense(
        "abc,bcd->adb", output_shape=(2, 6), bias_axes="d"
    ),
    "einsum_ellipsis": lambda: layers.EinsumDense(
        "...x,xy->...y", output_shape=(2,), bias_axes="y"
    ),
    "einsum_summed": lambda: layers.EinsumDense("abc,cd->ad", output_shape=(2,)),
    "time_distributed": lambda: layers.TimeDistributed(layers.Dense(3)),
    "custom": lambda: reference.Scale(),
    "class_token": lambda: ClassToken(),
    "weight_and_layer": lambda: Block(),
    "dense_subclass": lambda: DenseSubclass(3),
    "softmax_head": lambda: SoftmaxHead(),
}


@pytest.mark.slow_cases(but=["dense_rank_4"])
@pytest.mark.parametrize("name", IMAGE_LAYERS)
def test_image_layer(name):
    model = reference.classifier(IMAGE_LAYERS[name](), inputs=(8, 8, 3))
    reference.assert_exact(model, reference.images(), reference.labels())


@pytest.mark.slow_cases(but=["points", "groups", "groups_same"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution_of_several_channels(name):
    layer = CONVOLUTIONS[name]()
    size = 20 if layer.strides == (2, 2) else 13
    x = reference.images(size=size, channels=6)
    model = reference.classifier(layer, inputs=x.shape[1:])
    reference.assert_exact(model, x, reference.labels())


@pytest.mark.slow
def test_convolutions_where_groups_have_no_gradients():
    """Without oneDNN, which TensorFlow uses on some processors alone."""
    tests = [__file__, "-k", "convolution_of_several_channels"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        env={**os.environ, "TF_ENABLE_ONEDNN_OPTS": "0"},
        capture_output=True,
        text=True,
    )
    assert f"{len(CONVOLUTIONS)} passed" in done.stdout, done.stdout


@pytest.mark.slow_cases("few_positions", "many_channels", "groups")
@pytest.mark.parametrize("name", ["points", "few_positions", "groups", "many_channels"])
def test_a_convolution_of_no_examples_and_beside_what_is_not_finite(name):
    layer = CONVOLUTIONS[name]()
    x, y = reference.images(size=13, channels=6), reference.labels()
    model = reference.classifier(layer, inputs=x.shape[1:])
    nothing = reference.traced(model, x[:0], y[:0])
    assert all(not np.any(total) for total in nothing.sums)
    alone = reference.traced(model, np.delete(x, 2, 0), np.delete(y, 2, 0))
    for value in (np.nan, np.inf, 3e38):
        x[2] = value
        beside = reference.traced(model, x, y)
        for actual, expected in zip(beside.sums, alone.sums, strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow_cases(but=["einsum_ellipsis"])
@pytest.mark.parametrize("name", SEQUENCE_LAYERS)
def test_sequence_layer(name):
    model = reference.classifier(SEQUENCE_LAYERS[name](), inputs=(6, 4))
    reference.assert_exact(model, reference.sequences(), reference.labels())


def test_weights_in_an_activation():
    activation = layers.PReLU()
    activation.build((None, 6, 3))
    dense = layers.Dense(3, activation=activation)
    model = reference.classifier(dense, inputs=(6, 4))
    assert len(model.trainable_variables) == 5
    reference.assert_exact(model, reference.sequences(), reference.labels())


def test_convolution_3d():
    model = reference.classifier(layers.Conv3D(2, 2, strides=2), inputs=(4, 4, 4, 2))
    x = np.random.default_rng(0).normal(size=(4, 4, 4, 4, 2)).astype("f4")
    reference.assert_exact(model, x, reference.labels(batch=4))


@pytest.mark.slow
def test_unknown_spatial_size():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((None, None, 3)),
            layers.Conv2D(70, 3, strides=2, padding="same"),
            layers.Conv2D(70, 3, padding="valid"),
            layers.GroupNormalization(groups=2),
            layers.GlobalAveragePooling2D(),
            layers.Dense(3),
        ]
    )
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = reference.images(), reference.labels()
    _, gradients = reference.example_gradients(model, x, y)

    @tf.function(
        autograph=False,
        input_signature=[
            tf.TensorSpec([None, None, None, 3]),
            tf.TensorSpec([None], tf.int64),
        ],
    )
    def step(x, y):
        return reference.clipped_gradient_sums(model, x, y, l2_norm_clip=1.0)

    result = step(x, y)
    np.testing.assert_allclose(result.norms, reference.norms_of(gradients), rtol=1e-4)
    reference.assert_sums_close(result.sums, reference.clipped_sums(gradients, 1.0))


@pytest.mark.slow
def test_shared_layers():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((4,))
    dense, normalization = layers.Dense(4), layers.LayerNormalization()
    custom = reference.Scale()
    x = inputs
    for _ in range(3):
        x = custom(normalization(keras.ops.tanh(dense(x))))
    model = keras.Model(inputs, layers.Dense(3)(x))
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x = np.random.default_rng(0).normal(size=(5, 4)).astype("f4")
    reference.assert_exact(model, x, reference.labels())


def test_shared_layer_on_different_ranks():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6, 4))
    dense = layers.Dense(4, activation="relu")
    x = dense(layers.GlobalAveragePooling1D()(dense(inputs)))
    model = keras.Model(inputs, layers.Dense(3)(x))
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    reference.assert_exact(model, reference.sequences(), reference.labels())


def test_nested_models():
    keras.utils.set_random_seed(0)
    inner = keras.Sequential([keras.Input((4,)), layers.Dense(4, activation="tanh")])
    inputs = keras.Input((4,))
    model = keras.Model(inputs, layers.Dense(3)(inner(inner(inputs)) + inputs))
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x = np.random.default_rng(0).normal(size=(5, 4)).astype("f4")
    reference.assert_exact(model, x, reference.labels())


class Twice(reference.Scale):
    """Returns one tensor twice, and its own input."""

    def call(self, x):
        y = super().call(x)
        return y, y, x


@pytest.mark.parametrize(
    "make",
    [
        Twice,
        pytest.param(lambda: layers.LSTM(4, return_state=True), marks=pytest.mark.slow),
    ],
)
def test_one_tensor_returned_twice(make):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6, 4))
    first, second, third = make()(layers.Dense(4)(inputs))
    joined = layers.Flatten()(first * second + third)
    model = keras.Model(inputs, layers.Dense(3)(joined))
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    reference.assert_exact(model, reference.sequences(), reference.labels())


def test_unused_layer_has_zero_gradient():
    keras.utils.set_random_seed(0)

    class Unused(keras.Model):
        def __init__(self):
            super().__init__()
            self.used = layers.Dense(3)
            self.unused = layers.Dense(2)

        def build(self, shape):
            self.used.build(shape)
            self.unused.build(shape)

        def call(self, x):
            return self.used(x)

    model = Unused()
    model.build((None, 4))
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x = np.random.default_rng(0).normal(size=(5, 4)).astype("f4")
    result = reference.assert_exact(model, x, reference.labels())
    assert not np.any(result.sums[2]) and not np.any(result.sums[3])


def test_bfloat16_norm_is_that_of_the_sum():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.Conv2D(4, 3, dtype="mixed_bfloat16", activation="relu"),
            layers.LayerNormalization(dtype="mixed_bfloat16"),
            layers.Flatten(),
            reference.Scale(dtype="mixed_bfloat16"),
            layers.Dense(3, dtype="mixed_bfloat16"),
        ]
    )
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = reference.images(), reference.labels()
    reference.assert_exact(model, x, y, rtol=5e-2)
    # What matters for privacy: a single example's sum has exactly the clipped norm.
    result = reference.traced(model, x[:1], y[:1], clip=0.01)
    norm = np.sqrt(sum(float(np.sum(np.square(s))) for s in result.sums))
    assert norm == pytest.approx(0.01, rel=1e-5)


class Standardized(layers.Conv2D):
    """A kernel that is a function of the weight."""

    @property
    def kernel(self):
        weight = keras.ops.convert_to_tensor(self._kernel)
        mean, variance = keras.ops.moments(weight, axes=(0, 1, 2), keepdims=True)
        return (weight - mean) * keras.ops.rsqrt(variance + 1e-5)


class Positive(layers.Dense):
    @property
    def kernel(self):
        return keras.ops.softplus(self._kernel)


class CallsOtherwise(Standardized):
    def call(self, inputs):
        return super().call(inputs) + keras.ops.sum(self.kernel**2)


@pytest.mark.slow_cases("CallsOtherwise")
@pytest.mark.parametrize("base", [Standardized, CallsOtherwise])
def test_a_kernel_that_is_a_function_of_the_weight(base):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            base(8, 3, activation="relu"),
            Standardized(70, 3, strides=2, padding="same", use_bias=False),
            layers.GroupNormalization(2),
            layers.GlobalAveragePooling2D(),
            Positive(3),
        ]
    )
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    special = [
        isinstance(rule_for(layer, layer.trainable_variables), KernelFunctionRule)
        for layer in model.layers
    ]
    assert special == [base is Standardized, True, False, False, True]
    reference.randomize(model)
    reference.assert_exact(model, reference.images(), reference.labels())


@pytest.mark.slow_cases("3--1", "1-1", "1--1")
@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("groups", [1, 3])
def test_group_normalization_of_inputs_far_from_zero(axis, groups):
    layer = layers.GroupNormalization(groups, axis=axis, beta_initializer="ones")
    shape = (8, 8, 6) if axis == -1 else (6, 8, 8)
    model = reference.classifier(layer, inputs=shape)
    x = 20.0 + np.random.default_rng(0).normal(size=(5, *shape)).astype("f4")
    reference.assert_exact(model, x, reference.labels(), rtol=1e-3)
