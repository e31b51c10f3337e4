"""Models without exact per-example gradients are refused, never trained wrongly."""

import clipping_reference as reference
import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf.keras.clipping import (
    UnsupportedModelError,
    check_supported,
    clipped_gradient_sums,
    layers_executed_alone,
)

layers = keras.layers


def model_with(*inner, inputs=(4,), **compile_arguments):
    keras.utils.set_random_seed(2)
    model = keras.Sequential([keras.Input(inputs), *inner, layers.Flatten()])
    model.add(layers.Dense(3))
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        **compile_arguments,
    )
    return model


def rescued(layer, mode):
    layer.build((None, 4))
    layer.quantize(mode)
    return layer


def in_remat_scope():
    with keras.RematScope(mode="full"):
        return layers.Dense(3)


REFUSED = {
    "batch_normalization": (lambda: layers.BatchNormalization(), "GroupNormalization"),
    "spectral": (
        lambda: layers.SpectralNormalization(layers.Dense(3)),
        "Remove the wrapper",
    ),
    "quantized": (lambda: rescued(layers.Dense(3), "int8"), "quantize the trained"),
    "float16": (lambda: layers.Dense(3, dtype="float16"), "must be float32"),
    "activity": (
        lambda: layers.Dense(3, activity_regularizer="l2"),
        "activity regularizer",
    ),
    "remat": (in_remat_scope, "microbatch_size"),
}


@pytest.mark.slow_cases("quantized")
@pytest.mark.parametrize("name", REFUSED)
def test_refused_layer(name):
    make, fix = REFUSED[name]
    layer = make()
    model = model_with(layer)
    with pytest.raises(UnsupportedModelError, match=fix) as caught:
        check_supported(model)
    assert layer.name in str(caught.value)


def test_stateful_recurrence_is_refused():
    keras.utils.set_random_seed(0)
    inputs = keras.Input(batch_shape=(4, 6, 4))
    model = keras.Model(inputs, layers.GRU(3, stateful=True)(inputs))
    model.compile(loss="mse")
    with pytest.raises(UnsupportedModelError, match="stateful=False"):
        check_supported(model)


def test_unbuilt_uncompiled_and_frozen_models_are_refused():
    model = keras.Sequential([layers.Dense(3)])
    with pytest.raises(UnsupportedModelError, match="not built"):
        check_supported(model)
    model.build((None, 4))
    with pytest.raises(UnsupportedModelError, match="compile"):
        clipped_gradient_sums(
            model, np.zeros((2, 4), "f4"), np.zeros(2), l2_norm_clip=1.0
        )
    model.trainable = False
    with pytest.raises(UnsupportedModelError, match="no trainable weights"):
        check_supported(model)


class CustomLoss(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3)

    def build(self, shape):
        self.dense.build(shape)

    def call(self, x):
        return self.dense(x)

    def compute_loss(self, *args, **kwargs):
        return super().compute_loss(*args, **kwargs) ** 2


def test_own_compute_loss_is_refused():
    model = CustomLoss()
    model.build((None, 4))
    with pytest.raises(UnsupportedModelError, match="compute_loss"):
        check_supported(model)


class OwnsWeight(keras.Model):
    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        return x * self.w


def test_weight_of_the_model_itself_is_refused():
    model = OwnsWeight()
    model.build((None, 4))
    with pytest.raises(UnsupportedModelError, match="layer of its own"):
        check_supported(model)


class TiedProjection(layers.Layer):
    """Reads the table of an embedding that it does not call."""

    def __init__(self, embedding):
        super().__init__()
        self.embedding = embedding

    def call(self, x):
        return keras.ops.matmul(x, keras.ops.transpose(self.embedding.embeddings))


class HiddenTie(layers.Layer):
    """Has a weight of its own and reads that of another layer, hidden from Keras."""

    def __init__(self, other):
        super().__init__()
        self.other = lambda: other

    def build(self, shape):
        self.w = self.add_weight(shape=(3,), initializer="ones")

    def call(self, x):
        return x * self.w + keras.ops.sum(self.other().kernel)


class AddsLoss(layers.Layer):
    def call(self, x):
        self.add_loss(keras.ops.mean(x**2))
        return x


class Unseeded(layers.Layer):
    """Draws random numbers past Keras, in a layer with a weight."""

    def build(self, shape):
        self.w = self.add_weight(shape=(3,), initializer="ones")

    def call(self, x):
        return x * self.w * tf.random.normal(tf.shape(x))


def flat_rows(dense, x):
    """What a layer makes of rows of all examples together."""
    rows = dense(keras.ops.reshape(x, (-1, 2)))
    return keras.ops.reshape(rows, (*keras.ops.shape(x)[:-1], -1))


class Flattens(layers.Layer):
    """Calls a layer on rows of all examples together."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(2)

    def build(self, shape):
        self.dense.build((None, 2))

    def call(self, x):
        return flat_rows(self.dense, x)


class SharedInput(layers.Layer):
    """Calls a layer on something that is the same for all examples."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(4)

    def build(self, shape):
        self.dense.build((None, 4))

    def call(self, x):
        return x + self.dense(keras.ops.ones((1, 4)))


# In a layer, which runs alone then; and in the model itself, which is refused.
TOGETHER = {
    "rows of all examples": (
        Flattens,
        (lambda: layers.Dense(2), flat_rows),
        None,
    ),
    "the same for all": (
        SharedInput,
        (lambda: layers.Dense(4), lambda dense, x: x + dense(keras.ops.ones((1, 4)))),
        "without a batch dimension",
    ),
}


@pytest.mark.parametrize("name", TOGETHER)
def test_gradients_that_cannot_be_told_apart_are_taken_alone_or_refused(name):
    make, (inner, function), reason = TOGETHER[name]
    x, y = np.random.default_rng(0).normal(size=(2, 5, 4)).astype("f4")
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), layers.Dense(4), make()])
    model.compile(loss="mse")
    reference.assert_exact(model, x, y)
    assert layers_executed_alone(model) == (model.layers[-1],)

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = inner()

        def call(self, x):
            return function(self.inner, x)

    model = Own()
    model(x)
    model.compile(loss="mse")
    if reason is None:  # all of the model runs alone
        reference.assert_exact(model, x, y)
        assert layers_executed_alone(model) == (model,)
        return
    with pytest.raises(UnsupportedModelError, match=reason):
        reference.traced(model, x, y)


TRACED = {
    "added_loss": (AddsLoss, "add_loss"),
    "unseeded": (Unseeded, "SeedGenerator"),
}


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("name", TRACED)
def test_refused_while_tracing(name, eager):
    make, reason = TRACED[name]
    model = model_with(layers.Dense(3), make())
    x, y = np.ones((6, 4), "f4"), reference.labels(batch=6)
    run = clipped_gradient_sums if eager else reference.traced
    with pytest.raises(UnsupportedModelError, match=reason):
        run(model, x, y, **({"l2_norm_clip": 1.0} if eager else {}))
    # All layers have their own `call` back.
    assert not any("call" in vars(layer) for layer in model._flatten_layers())


def tied_model():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((7,), dtype="int32")
    embedding = layers.Embedding(5, 3)
    x = layers.Dense(3)(embedding(inputs))
    model = keras.Model(inputs, TiedProjection(embedding)(x))
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@pytest.mark.parametrize("eager", [False, True])
def test_tied_weight_is_refused(eager):
    x = reference.tokens()
    run = clipped_gradient_sums if eager else reference.traced
    with pytest.raises(UnsupportedModelError, match="ReversibleEmbedding"):
        run(tied_model(), x, x, **({"l2_norm_clip": 1.0} if eager else {}))


def test_tied_weight_hidden_in_another_layer_is_refused():
    dense = layers.Dense(3)
    model = model_with(dense, HiddenTie(dense))
    with pytest.raises(UnsupportedModelError, match="does not own it"):
        reference.traced(model, np.ones((6, 4), "f4"), reference.labels(batch=6))


def test_weight_read_by_the_loss_is_refused():
    model = model_with(layers.Dense(3))
    kernel = model.layers[0].kernel
    model.compile(
        loss=lambda y, p: keras.ops.mean((y - p) ** 2) + keras.ops.sum(kernel**2)
    )
    y = np.zeros((6, 3), "f4")
    with pytest.raises(UnsupportedModelError, match="outside the call"):
        reference.traced(model, np.ones((6, 4), "f4"), y)


def test_layers_are_restored_after_an_error():
    model = model_with(layers.Dense(3), layers.Dense(3))
    x, y = np.ones((6, 4), "f4"), reference.labels(batch=6)

    class Broken(Exception):
        pass

    def fail(_):
        raise Broken("on purpose")

    activation = model.layers[1].activation
    model.layers[1].activation = fail
    with pytest.raises(Broken):
        reference.traced(model, x, y)
    assert not any("call" in vars(layer) for layer in model._flatten_layers())
    assert model.layers[1].activation is fail
    model.layers[1].activation = activation
    reference.assert_exact(model, x, y)


def test_a_batch_size_written_into_the_model_is_explained():
    inputs = keras.Input((4,))
    fixed = layers.Lambda(lambda x: tf.reshape(x, (6, 4)))(inputs)
    model = keras.Model(inputs, layers.Dense(3)(fixed))
    model.compile(loss="mse")
    with pytest.raises(UnsupportedModelError, match="accept any batch size"):
        reference.traced(model, np.ones((6, 4), "f4"), np.ones((6, 3), "f4"))
