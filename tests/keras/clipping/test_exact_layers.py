"""Compares clipped sums of all kinds of layers with gradients of single examples."""

import os

import clipping_reference as reference
import keras
import numpy as np
import pytest
from children import printed
from keras import layers as L
from small_models import dtype_policy

from tf_bandmf.keras.clipping.rules import rule_for
from tf_bandmf.keras.clipping.rules.kernel_functions import KernelFunctionRule


class ClassToken(L.Layer):
    """A layer that prepends one trainable token to each example."""

    def build(self, shape):
        self.token = self.add_weight(shape=(1, 1, shape[-1]), initializer="normal")

    def call(self, x):
        shape = keras.ops.shape(x)
        token = keras.ops.broadcast_to(self.token, (shape[0], 1, shape[2]))
        return keras.ops.concatenate([token, x], axis=1)


class SoftmaxHead(L.Layer):
    """A custom output layer with a softmax."""

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1], 3), initializer="normal")

    def call(self, x):
        return keras.ops.softmax(20.0 * x @ self.w)


class DenseSubclass(L.Dense):
    """A Dense layer that adds the squared norm of its kernel to its output."""

    def call(self, inputs):
        return super().call(inputs) + keras.ops.sum(self.kernel**2)


class Positions(L.Layer):
    """A layer that looks up position embeddings once for all examples."""

    def __init__(self, leading_one=False, then=lambda positions: positions):
        super().__init__()
        self.tokens, self.positions = L.Embedding(5, 4), L.Embedding(7, 4)
        self.leading_one, self.then = leading_one, then

    def build(self, shape):
        self.tokens.build(shape)
        self.positions.build(shape)

    def call(self, x):
        ids = keras.ops.arange(7)
        ids = ids[None] if self.leading_one else ids
        return self.tokens(x) + self.then(self.positions(ids))


def with_activation():
    """Returns a layer whose activation has weights."""
    activation = L.PReLU()
    activation.build((None, 6, 3))
    return L.Dense(3, activation=activation)


IMAGE, SEQUENCE, TOKENS = (8, 8, 3), (6, 4), (7,)
LAYERS = {
    IMAGE: {
        "depthwise": lambda: L.DepthwiseConv2D(3, depth_multiplier=2),
        "depthwise_strided": lambda: L.DepthwiseConv2D(3, strides=2, padding="same"),
        "conv_groups": lambda: L.Conv2D(6, 3, strides=2, groups=3, padding="same"),
        "conv_transpose": lambda: L.Conv2DTranspose(3, 3, strides=2),
        "group_norm": lambda: L.GroupNormalization(groups=3),
        "instance_norm": lambda: L.GroupNormalization(groups=-1, scale=False),
        "layer_norm": lambda: L.LayerNormalization(),
        "layer_norm_axes": lambda: L.LayerNormalization(axis=[1, 3]),
        "rms_norm": lambda: L.RMSNormalization(),
        "prelu": lambda: L.PReLU(shared_axes=[1, 2]),
        "separable": lambda: L.SeparableConv2D(4, 3),
        "dense_rank_4": lambda: L.Dense(4, activation="gelu"),
    },
    (4, 4, 4, 2): {"convolution_3d": lambda: L.Conv3D(2, 2, strides=2)},
    SEQUENCE: {
        "dense_rank_3": lambda: L.Dense(4),
        "dense_rank_3_wide": lambda: L.Dense(11000, use_bias=False),
        "conv_causal": lambda: L.Conv1D(3, 3, padding="causal", dilation_rate=2),
        "depthwise_1d": lambda: L.DepthwiseConv1D(3, dilation_rate=2, padding="same"),
        "einsum_heads": lambda: L.EinsumDense(
            "abc,cde->abde", (6, 2, 3), bias_axes="de"
        ),
        "einsum_groups": lambda: L.EinsumDense("abc,cb->abc", (6, 4), bias_axes="b"),
        "einsum_batched_kernel": lambda: L.EinsumDense("abc,bcd->adb", (2, 6)),
        "einsum_ellipsis": lambda: L.EinsumDense("...x,xy->...y", (2,), bias_axes="y"),
        "einsum_summed": lambda: L.EinsumDense("abc,cd->ad", output_shape=(2,)),
        "time_distributed": lambda: L.TimeDistributed(L.Dense(3)),
        "custom": lambda: reference.Scale(),
        "class_token": lambda: ClassToken(),
        "weight_and_layer": lambda: reference.Around(L.Dense(4, activation="tanh")),
        "weights_in_an_activation": with_activation,
        "dense_subclass": lambda: DenseSubclass(3),
        "softmax_head": lambda: SoftmaxHead(),
    },
    TOKENS: {
        "embedding": lambda: L.Embedding(5, 3),
        "positions": lambda: Positions(),
        "positions_of_one": lambda: Positions(True),
        # The training step repeats the position embeddings for each example. Only
        # elementwise functions may be applied to the repeated embeddings.
        "positions_scaled": lambda: Positions(then=lambda p: 0.5 * p),
        "positions_normalized": lambda: Positions(
            then=lambda p: keras.ops.softmax(p, axis=0)
        ),
        "positions_times_rows": lambda: Positions(
            then=lambda p: (p * np.ones((5, 7, 4), "f4"))[0]
        ),
    },
    (300,): {"many_lookups": lambda: L.Embedding(5, 3)},
}
CASES = {name: shape for shape, table in LAYERS.items() for name in table}
FAST = [
    "einsum_ellipsis",
    "dense_rank_4",
    "weights_*",
    "convolution_3d",
    "many_lookups",
]
FAST += ["positions_of_one", "positions_normalized"]


@pytest.mark.slow_cases(but=FAST)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.invariant(17, 18)
def test_layer(name):
    shape = CASES[name]
    is_token = len(shape) == 1
    x = reference.tokens(length=shape[0]) if is_token else reference.normal(5, *shape)
    layer = LAYERS[shape][name]()
    dtype = "int32" if is_token else None
    model = reference.classifier(layer, inputs=shape, dtype=dtype)
    reference.assert_exact(model, x, reference.labels())


def test_as_many_examples_as_positions():
    model = reference.classifier(Positions(), inputs=(7,), dtype="int32")
    x, y = reference.tokens(batch=7), reference.labels(batch=7)
    reference.assert_exact(model, x, y)


# The shapes of a convolution decide how its kernel gradients are computed. The cases
# cover every method.
CONVOLUTIONS = {
    "points": lambda: L.Conv2D(7, 1),
    "points_strided": lambda: L.Conv2D(7, 1, strides=2),
    "few_positions": lambda: L.Conv2D(7, 3, strides=3),
    "groups": lambda: L.Conv2D(7, 3),
    "groups_same": lambda: L.Conv2D(7, (4, 3), padding="same"),
    "groups_strided": lambda: L.Conv2D(7, (2, 3), strides=2, padding="same"),
    "many_channels": lambda: L.Conv2D(700, 2, padding="same"),
    "many_channels_strided": lambda: L.Conv2D(700, 2, strides=2),
    "dilated": lambda: L.Conv2D(7, 3, dilation_rate=2),
}


@pytest.mark.slow_cases(but=["points", "groups", "groups_same"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.invariant(17, 18)
def test_convolution_of_several_channels(name):
    layer = CONVOLUTIONS[name]()
    # TensorFlow's gradient of a strided 1 x 1 kernel corrupts memory if the strides
    # miss the last position and the number of examples is odd. The reference uses one
    # example, so the sizes avoid this.
    size = 19 if layer.strides == (2, 2) else 13
    x = reference.images(size=size, channels=6)
    model = reference.classifier(layer, inputs=x.shape[1:])
    reference.assert_exact(model, x, reference.labels())


@pytest.mark.slow
def test_convolutions_where_groups_have_no_gradients():
    """Asserts that the convolution tests above also pass with oneDNN turned off.

    TensorFlow uses oneDNN on some processors only. Without it, gradients of grouped
    convolutions may not be available on the CPU, so other methods replace them.
    """
    tests = [__file__, "-k", "convolution_of_several_channels"]
    environment = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": "0"}
    options = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
    assert f"{len(CONVOLUTIONS)} passed" in printed(*options, *tests, env=environment)


@pytest.mark.invariant(17)
def test_bfloat16():
    with dtype_policy("mixed_bfloat16"):
        scale = reference.Scale()
        stack = [L.Conv2D(4, 3, activation="relu"), L.LayerNormalization(), L.Flatten()]
        model = reference.classifier(*stack, scale, inputs=IMAGE)
    assert scale.compute_dtype == "bfloat16"
    reference.assert_exact(model, reference.images(), reference.labels(), rtol=5e-2)


class Standardized(L.Conv2D):
    """A convolution whose kernel is its standardized weight."""

    @property
    def kernel(self):
        weight = keras.ops.convert_to_tensor(self._kernel)
        mean, variance = keras.ops.moments(weight, axes=(0, 1, 2), keepdims=True)
        return (weight - mean) * keras.ops.rsqrt(variance + 1e-5)


class Positive(L.Dense):
    @property
    def kernel(self):
        return keras.ops.softplus(self._kernel)


class CallsOtherwise(Standardized):
    def call(self, inputs):
        return super().call(inputs) + keras.ops.sum(self.kernel**2)


@pytest.mark.slow_cases("CallsOtherwise")
@pytest.mark.parametrize("base", [Standardized, CallsOtherwise])
def test_a_kernel_that_is_a_function_of_the_weight(base):
    stack = [
        base(8, 3, activation="relu"),
        Standardized(70, 3, strides=2, padding="same", use_bias=False),
        L.GlobalAveragePooling2D(),
        Positive(4),
    ]
    model = reference.classifier(*stack, inputs=IMAGE)
    special = [
        isinstance(rule_for(layer, layer.trainable_variables), KernelFunctionRule)
        for layer in stack
    ]
    assert special == [base is Standardized, True, False, True]
    reference.assert_exact(model, reference.images(), reference.labels())


@pytest.mark.slow_cases("3--1", "1-1", "1--1")
@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("groups", [1, 3])
def test_group_normalization_of_inputs_far_from_zero(axis, groups):
    layer = L.GroupNormalization(groups, axis=axis, beta_initializer="ones")
    shape = (8, 8, 6) if axis == -1 else (6, 8, 8)
    model = reference.classifier(layer, inputs=shape)
    x = 20.0 + reference.normal(5, *shape)
    reference.assert_exact(model, x, reference.labels(), rtol=1e-3)
