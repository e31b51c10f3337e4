"""Tests conversion of all kinds of models with `make_private` and `to_plain`."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import data, make_plan, make_private_model

import tf_bandmf.keras


class Subclassed(keras.Model):
    """A model without a config, which creates its weights in its first call."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.hidden = keras.layers.Dense(units, activation="tanh")
        self.outputs_ = keras.layers.Dense(3)

    def call(self, x, training=False):
        return self.outputs_(self.hidden(x))


@keras.saving.register_keras_serializable(package="test_conversion")
class WithConfig(Subclassed):
    def get_config(self):
        return {"units": self.hidden.units, "name": self.name}


def adapted():
    layers = [keras.layers.Dense(4), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((5,)), *layers])
    model.layers[0].enable_lora(2)
    return model


def train(model):
    plan = make_plan(epochs=1)
    model = make_private_model(plan, model=model)
    model.fit(plan.batches(*data), epochs=1, verbose=0)
    return model


def assert_same_outputs(model, other, x):
    np.testing.assert_allclose(model(x), other(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", [lambda: WithConfig(4), adapted])
def test_a_model_trains_is_saved_and_becomes_plain(make, tmp_path):
    model = train(make())
    kind, x = type(make()), data[0]
    assert isinstance(model, tf_bandmf.keras.extending.PrivateTraining)
    assert isinstance(model, kind)
    assert type(model).__name__ == f"Private{kind.__name__}"
    model.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    assert type(again) is type(model)
    assert_same_outputs(again, model, x)
    with pytest.raises(Exception, match="has no noise key"):
        again.fit(again.optimizer.plan.batches(*data), verbose=0)
    plain = tf_bandmf.keras.to_plain(model)
    plain.save(tmp_path / "plain.keras")
    loaded = keras.models.load_model(tmp_path / "plain.keras")
    for released in (plain, loaded, tf_bandmf.keras.to_plain(again)):
        assert type(released) is kind
        assert_same_outputs(released, model, x)
    plain.compile("sgd", "mse")
    plain.fit(x, np.zeros((len(x), 3)), verbose=0)


class Mine(tf_bandmf.keras.extending.PrivateTraining, Subclassed):
    """A model class whose instances are always private."""


@pytest.mark.parametrize(
    ("make", "message"),
    [(Subclassed, r"to_plain\(model, into=plain\)"), (Mine, "derives from Private")],
)
def test_a_model_that_keras_cannot_make_again(make, message):
    model = train(make(4))
    with pytest.raises(TypeError, match=message):
        tf_bandmf.keras.to_plain(model)
    plain, other = Subclassed(4), Subclassed(5)
    plain(data[0]), other(data[0])
    assert tf_bandmf.keras.to_plain(model, into=plain) is plain
    assert_same_outputs(plain, model, data[0])
    with pytest.raises(ValueError, match="shape"):
        tf_bandmf.keras.to_plain(model, into=other)
    with pytest.raises(TypeError, match="must be a plain model"):
        tf_bandmf.keras.to_plain(model, into=model)


ADAPTED = {
    "strings": (keras.layers.StringLookup, ["cat", "dog", "cat"]),
    "bins": (lambda: keras.layers.Discretization(num_bins=2), [1.0, 15.0, 29.0]),
    "texts": (
        lambda: keras.layers.TextVectorization(output_sequence_length=2),
        ["a cat", "a dog", "cat"],
    ),
    "numbers": (keras.layers.Normalization, [1.0, 4.0, 7.0]),
}


@pytest.mark.parametrize("name", ADAPTED)
def test_what_was_adapted_is_that_of_the_private_model(name, tmp_path):
    make, values = ADAPTED[name]
    rows = tf.constant(values)[:, None]

    def adapted_to(values):
        layer = make()
        layer.adapt(tf.constant(values)[:, None])
        inputs = keras.Input((1,), dtype=rows.dtype.name)
        vectors = keras.layers.Embedding(8, 3)(layer(inputs))
        outputs = keras.layers.Dense(2)(keras.layers.Flatten()(vectors))
        return keras.Model(inputs, outputs)

    private = tf_bandmf.keras.make_private(adapted_to(values))
    plain = tf_bandmf.keras.to_plain(private)
    plain.save(tmp_path / "plain.keras")
    released = [plain, keras.models.load_model(tmp_path / "plain.keras")]
    if name == "numbers":
        into = adapted_to([0.0, 9.0])
        released += [tf_bandmf.keras.to_plain(private, into)]
    for other in released:
        np.testing.assert_array_equal(other(rows), private(rows))


class Unregistered(keras.layers.Layer):
    def __init__(self, factor, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor

    def build(self, shape):
        self.scale = self.add_weight(shape=shape[-1:], name="scale")

    def call(self, x):
        return x * self.factor * self.scale

    def get_config(self):
        return {**super().get_config(), "factor": self.factor}


def test_layers_that_are_not_registered_and_lambdas_become_plain():
    offset = 3.0
    inputs = keras.Input((5,))
    shifted = keras.layers.Lambda(lambda t: keras.ops.tanh(t) + offset)
    inner = keras.Sequential([keras.Input((5,)), Unregistered(2.0), shifted])
    frozen = keras.layers.Dense(2, name="o", trainable=False)
    model = keras.Model(inputs, {"o": frozen(inner(inputs))})
    expected = model(data[0])["o"]
    plain = tf_bandmf.keras.to_plain(tf_bandmf.keras.make_private(model))
    assert type(plain).__name__ == "Functional" and plain.name == model.name
    np.testing.assert_allclose(plain(data[0])["o"], expected, rtol=1e-6)
    assert [w.trainable for w in plain.weights] == [w.trainable for w in model.weights]
