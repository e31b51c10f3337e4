"""Tests that models are refused if their per-example gradients would not be exact."""

import clipping_reference as reference
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as L

from tf_bandmf.keras.clipping.forward.supported import check_supported
from tf_bandmf.keras.clipping.sums.clipped_sums import clipped_gradient_sums
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError


def model_with(*inner, loss=reference.FROM_LOGITS):
    keras.utils.set_random_seed(2)
    stack = [keras.Input((4,)), *inner, L.Flatten(), L.Dense(3)]
    model = keras.Sequential(stack)
    model.compile(loss=loss)
    return model


def quantized():
    layer = L.Dense(3)
    layer.build((None, 4))
    layer.quantize("int8")
    return layer


def in_remat_scope():
    with keras.RematScope(mode="full"):
        return L.Dense(3)


class AddsLoss(L.Layer):
    def call(self, x):
        self.add_loss(keras.ops.mean(x**2))
        return x


class Unseeded(L.Layer):
    """A layer that draws random numbers without a Keras seed generator."""

    def build(self, shape):
        self.w = self.add_weight(shape=(4,), initializer="ones")

    def call(self, x):
        return x * self.w * tf.random.normal(tf.shape(x))


LAYERS = {
    "batch normalization": (L.BatchNormalization, "GroupNormalization"),
    "spectral": (lambda: L.SpectralNormalization(L.Dense(3)), "without noise"),
    "quantized": (quantized, "quantize the trained"),
    "float16": (lambda: L.Dense(3, dtype="float16"), "must be float32"),
    "activity": (lambda: L.Dense(3, activity_regularizer="l2"), "activity regularizer"),
    "remat": (in_remat_scope, "microbatch_size"),
    "added loss": (AddsLoss, "add_loss"),
    "unseeded": (Unseeded, "SeedGenerator"),
}


def assert_refused(model, x, y, message):
    for run in (clipped_gradient_sums, tf.function(clipped_gradient_sums)):
        with pytest.raises(UnsupportedModelError, match=message) as caught:
            run(model, tf.constant(x), tf.constant(y), l2_norm_clip=1.0)
    # The error must not leave a patched `call` on any layer.
    assert not any("call" in vars(layer) for layer in model._flatten_layers())
    return str(caught.value)


@pytest.mark.slow_cases("quantized")
@pytest.mark.parametrize("name", LAYERS)
def test_refused_layer(name):
    make, fix = LAYERS[name]
    layer = make()
    x, y = np.ones((6, 4), "f4"), reference.labels(batch=6)
    assert layer.name in assert_refused(model_with(layer), x, y, fix)


class TiedProjection(L.Layer):
    """A layer that reads the table of an embedding layer without calling the layer."""

    def __init__(self, embedding):
        super().__init__()
        self.embedding = embedding

    def call(self, x):
        return keras.ops.matmul(x, keras.ops.transpose(self.embedding.embeddings))


class HiddenTie(L.Layer):
    """A layer that reads another layer's kernel, and hides that layer from Keras."""

    def __init__(self, other):
        super().__init__()
        self.other = lambda: other

    def build(self, shape):
        self.w = self.add_weight(shape=(3,), initializer="ones")

    def call(self, x):
        return x * self.w + keras.ops.sum(self.other().kernel)


class Custom(keras.Model):
    """A model that computes `function(inner, x)`."""

    def __init__(self, inner, function):
        super().__init__()
        self.inner, self.function = inner, function

    def call(self, x):
        return self.function(self.inner, x)


class CustomLoss(Custom):
    def compute_loss(self, *args, **kwargs):
        return super().compute_loss(*args, **kwargs) ** 2


class OwnsWeight(Custom):
    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1],), initializer="ones")


def custom(kind):
    model = kind(L.Dense(3), lambda inner, x: inner(x))
    model(tf.ones((1, 4)))
    model.compile(loss=reference.FROM_LOGITS)
    return model


def tied():
    embedding = L.Embedding(4, 3)
    projection = TiedProjection(embedding)
    return reference.functional((4,), lambda x: projection(embedding(x)), dtype="int32")


def tied_in_secret():
    dense = L.Dense(3)
    return model_with(dense, HiddenTie(dense))


def read_by_the_loss():
    model = model_with(L.Dense(3))
    kernel = model.layers[0].kernel
    model.compile(
        loss=lambda y, p: keras.ops.mean((y - p) ** 2) + keras.ops.sum(kernel**2)
    )
    return model


def stateful():
    inputs = keras.Input(batch_shape=(6, 4, 1))
    model = keras.Model(inputs, L.GRU(3, stateful=True)(inputs))
    model.compile(loss="mse")
    return model


def unbuilt():
    model = keras.Sequential([L.Dense(3)])
    model.compile(loss="mse")
    return model


def uncompiled():
    return keras.Sequential([keras.Input((4,)), L.Dense(3)])


def frozen():
    model = model_with()
    model.trainable = False
    return model


MODELS = {
    "unbuilt": (unbuilt, "not built"),
    "uncompiled": (uncompiled, "compile"),
    "frozen": (frozen, "no trainable weights"),
    "stateful": (stateful, "any batch size"),
    "custom loss": (lambda: custom(CustomLoss), "compute_loss"),
    "weight of the model": (lambda: custom(OwnsWeight), "a separate layer"),
    "tied": (tied, "ReversibleEmbedding"),
    "tied in secret": (tied_in_secret, "outside the call"),
    "read by the loss": (read_by_the_loss, "outside the call"),
    "size of the batch": (
        lambda: model_with(L.Lambda(lambda x: tf.reshape(x, (6, 4)))),
        "accept any batch size",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_refused_model(name):
    make, reason = MODELS[name]
    model = make()
    shape = (6, 4, 1) if name == "stateful" else (6, 4)
    x = np.ones(shape, "i4" if name == "tied" else "f4")
    is_scored = name == "read by the loss"
    y = np.zeros((6, 3), "f4") if is_scored else reference.labels(batch=6)
    assert_refused(model, x, y, reason)


def rows_of_all(dense, x):
    """Calls a layer once on a batch that consists of the rows of all examples."""
    rows = dense(keras.ops.reshape(x, (-1, 2)))
    return keras.ops.reshape(rows, (*keras.ops.shape(x)[:-1], -1))


def same_for_all(dense, x):
    """Calls a layer on a constant that all examples share."""
    return x + dense(keras.ops.ones((1, 4)))


# Functions that call a layer on an input without a separate batch axis. If a layer with
# weights of its own makes the call, this is harmless, because that layer is
# differentiated as a whole. If the model itself makes the call, the whole model runs on
# one example at a time, unless the input of the called layer can be repeated for each
# example.
TOGETHER = {
    "rows of all examples": (2, rows_of_all, True),
    "the same for all": (4, same_for_all, False),
}


@pytest.mark.parametrize("name", TOGETHER)
def test_gradients_that_cannot_be_told_apart_are_taken_alone_or_repeated(name):
    width, function, is_alone = TOGETHER[name]
    x, y = reference.normal(2, 5, 4)
    layer = reference.Around(L.Dense(width), function)
    model = keras.Sequential([keras.Input((4,)), L.Dense(4), layer])
    model.compile(loss="mse")
    reference.assert_exact(model, x, y)
    assert reference.layers_alone(model, x) == ()

    model = Custom(L.Dense(width), function)
    model(x)
    model.compile(loss="mse")
    reference.assert_exact(model, x, y)
    assert reference.layers_alone(model, x) == ((model,) if is_alone else ())


def test_layers_are_restored_after_an_error():
    model = model_with(L.Dense(3), L.Dense(3))
    x, y = np.ones((6, 4), "f4"), reference.labels(batch=6)

    def fail(_):
        raise KeyError("on purpose")

    activation, model.layers[1].activation = model.layers[1].activation, fail
    check_supported(model)
    with pytest.raises(UnsupportedModelError, match="on purpose"):
        reference.traced(model, x, y)
    assert not any("call" in vars(layer) for layer in model._flatten_layers())
    assert model.layers[1].activation is fail
    model.layers[1].activation = activation
    reference.assert_exact(model, x, y)
