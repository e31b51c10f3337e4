"""`make_private` and `to_plain` for all kinds of models."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_bandmf.keras


class Subclassed(keras.Model):
    """Its weights exist when it was called once. Keras has no config of it."""

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


class FunctionalSubclass(keras.Model):
    def __init__(self, units):
        inputs = keras.Input((5,))
        super().__init__(
            inputs, keras.layers.Dense(3)(keras.layers.Dense(units)(inputs))
        )
        self.units = units

    def get_config(self):
        return {"units": self.units}

    @classmethod
    def from_config(cls, config):
        return cls(**config)


class Dictionaries(keras.Model):
    """Nested inputs and outputs."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.first = keras.layers.Dense(3)
        self.second = keras.layers.Dense(1)

    def call(self, inputs):
        hidden = keras.ops.tanh(inputs["a"]) + inputs["b"]
        return {"class": self.first(hidden), "value": self.second(hidden)}


@pytest.fixture
def train(data, make_plan, compile_model):
    def run(model):
        plan = make_plan(epochs=1)
        tf_bandmf.keras.make_private(model)
        compile_model(model, tf_bandmf.keras.PrivateOptimizer("sgd", plan))
        model.fit(plan.batches(*data), epochs=1, verbose=0)
        return model

    return run


@pytest.mark.parametrize("make", [WithConfig, FunctionalSubclass])
@pytest.mark.parametrize("called", [False, True])
@pytest.mark.slow_cases(but=["True-WithConfig"])
def test_a_subclassed_model_trains_and_becomes_plain(make, called, data, train):
    model = make(4)
    if called:
        model(data[0])
    train(model)
    assert isinstance(model, tf_bandmf.keras.PrivateTraining) and isinstance(
        model, make
    )
    assert type(model).__name__ == f"Private{make.__name__}"
    plain = tf_bandmf.keras.to_plain(model)
    assert type(plain) is make
    np.testing.assert_allclose(plain(data[0]), model(data[0]), rtol=1e-6)
    plain.compile("sgd", "mse")
    plain.fit(data[0], np.zeros((len(data[0]), 3)), verbose=0)


def test_a_private_subclassed_model_is_saved_and_loaded(data, train, tmp_path):
    make = WithConfig
    model = train(make(4))
    model.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    assert type(again) is type(model)
    np.testing.assert_allclose(again(data[0]), model(data[0]), rtol=1e-6)
    with pytest.raises(Exception, match="files hold no noise key"):
        again.fit(again.optimizer.plan.batches(*data), verbose=0)
    released = tf_bandmf.keras.to_plain(again)
    assert type(released) is make
    released.save(tmp_path / "plain.keras")
    loaded = keras.models.load_model(tmp_path / "plain.keras")
    assert type(loaded) is make
    np.testing.assert_allclose(loaded(data[0]), model(data[0]), rtol=1e-6)


def test_a_model_that_keras_cannot_make_again(data, train):
    model = train(Subclassed(4))
    with pytest.raises(TypeError, match=r"to_plain\(model, into=plain\)"):
        tf_bandmf.keras.to_plain(model)
    plain = Subclassed(4)
    plain(data[0])
    assert tf_bandmf.keras.to_plain(model, into=plain) is plain
    np.testing.assert_allclose(plain(data[0]), model(data[0]), rtol=1e-6)


def test_into_is_a_plain_model_of_the_same_architecture(data, train):
    model = train(Subclassed(4))
    other = Subclassed(5)
    other(data[0])
    with pytest.raises(ValueError, match="shape"):
        tf_bandmf.keras.to_plain(model, into=other)
    with pytest.raises(TypeError, match="into must be a plain model"):
        tf_bandmf.keras.to_plain(model, into=model)


def test_a_class_that_was_private_from_the_beginning(data, train):
    class Mine(tf_bandmf.keras.PrivateTraining, Subclassed):
        pass

    model = train(Mine(4))
    with pytest.raises(TypeError, match="private from the beginning"):
        tf_bandmf.keras.to_plain(model)
    plain = Subclassed(4)
    plain(data[0])
    tf_bandmf.keras.to_plain(model, into=plain)
    np.testing.assert_allclose(plain(data[0]), model(data[0]), rtol=1e-6)


@pytest.mark.parametrize("name", ["train_step", "compute_loss", "make_train_function"])
@pytest.mark.invariant(6)
def test_a_training_step_of_its_own_is_refused(name):
    override = {name: lambda self, *args, **kwargs: None}
    model = type("Own", (Subclassed,), override)(4)
    with pytest.raises(TypeError, match=f"overrides {name}"):
        tf_bandmf.keras.make_private(model)
    assert not isinstance(model, tf_bandmf.keras.PrivateTraining)


def test_other_things_are_refused():
    with pytest.raises(TypeError, match=r"takes a keras\.Model, found Dense"):
        tf_bandmf.keras.make_private(keras.layers.Dense(3))
    with pytest.raises(TypeError, match="made private, found Subclassed"):
        tf_bandmf.keras.to_plain(Subclassed(4))


def test_dictionaries_of_inputs_and_outputs(data, make_plan):
    x, y = data
    inputs = {"a": x, "b": x[:, ::-1].copy()}
    targets = {"class": y, "value": x[:, :1]}
    plan = make_plan(epochs=1)
    model = tf_bandmf.keras.make_private(Dictionaries())
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        tf_bandmf.keras.PrivateOptimizer("sgd", plan),
        loss={"class": cross_entropy, "value": "mse"},
        loss_weights={"class": 1.0, "value": 0.1},
    )
    model.fit(plan.batches(inputs, targets), epochs=1, verbose=0)
    plain = tf_bandmf.keras.to_plain(model)
    for name, output in plain(inputs).items():
        np.testing.assert_allclose(output, model(inputs)[name], rtol=1e-6)


def test_an_adapted_sequential_model_becomes_plain(data, train):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((5,)), keras.layers.Dense(4), keras.layers.Dense(3)]
    )
    model.layers[0].enable_lora(2)
    train(model)
    plain = tf_bandmf.keras.to_plain(model)
    np.testing.assert_allclose(plain(data[0]), model(data[0]), rtol=1e-5, atol=1e-6)


LOOKUPS = {
    "strings": (keras.layers.StringLookup, ["cat", "dog", "cat"]),
    "known strings": (
        lambda: keras.layers.StringLookup(vocabulary=["dog", "cat"]),
        ["cat", "dog", "mat"],
    ),
    "integers": (keras.layers.IntegerLookup, [7, 3, 7]),
    "bins": (lambda: keras.layers.Discretization(num_bins=2), [1.0, 15.0, 29.0]),
    "texts": (
        lambda: keras.layers.TextVectorization(output_sequence_length=2),
        ["a cat", "a dog", "cat"],
    ),
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_vocabularies_are_those_of_the_private_model(name, tmp_path):
    make, values = LOOKUPS[name]
    lookup, rows = make(), tf.constant(values)[:, None]
    if name != "known strings":
        lookup.adapt(tf.constant(values))
    inputs = keras.Input((1,), dtype=rows.dtype.name)
    vectors = keras.layers.Embedding(8, 3)(lookup(inputs))
    outputs = keras.layers.Dense(2)(keras.layers.Flatten()(vectors))
    private = tf_bandmf.keras.make_private(keras.Model(inputs, outputs))
    plain = tf_bandmf.keras.to_plain(private)
    np.testing.assert_array_equal(plain(rows), private(rows))
    plain.save(tmp_path / "plain.keras")
    loaded = keras.models.load_model(tmp_path / "plain.keras")
    np.testing.assert_array_equal(loaded(rows), private(rows))


@pytest.mark.slow_cases("config")
@pytest.mark.parametrize("make", ["config", "into"])
def test_a_normalization_is_that_of_the_private_model(make, train, data):
    def model():
        normalization = keras.layers.Normalization()
        normalization.adapt(np.array([[1.0] * 5, [4.0] * 5]))
        return keras.Sequential(
            [keras.Input((5,)), normalization, keras.layers.Dense(3)]
        )

    private = train(model())
    into = model() if make == "into" else None
    if into is not None:
        into.layers[0].adapt(np.array([[0.0] * 5, [9.0] * 5]))
    plain = tf_bandmf.keras.to_plain(private, into)
    x = np.asarray(data[0])
    np.testing.assert_allclose(plain(x), private(x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(plain.layers[0].mean, [[2.5] * 5])


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
    inner = keras.Sequential(
        [
            keras.Input((5,)),
            Unregistered(2.0),
            keras.layers.Lambda(lambda t: keras.ops.tanh(t) + offset),
        ]
    )
    a, b = keras.Input((5,), name="a"), keras.Input((5,), name="b")
    shared = keras.layers.Dense(4)
    hidden = keras.layers.Add()([shared(inner(a)), shared(b)])
    frozen = keras.layers.Dense(2, name="o", trainable=False)
    model = keras.Model({"a": a, "b": b}, {"o": frozen(hidden)})
    x = {name: np.random.default_rng(0).normal(size=(4, 5)) for name in ("a", "b")}
    expected = model(x)["o"]
    tf_bandmf.keras.make_private(model)
    plain = tf_bandmf.keras.to_plain(model)
    assert type(plain).__name__ == "Functional" and plain.name == model.name
    np.testing.assert_allclose(plain(x)["o"], expected, rtol=1e-6)
    assert [w.trainable for w in plain.weights] == [w.trainable for w in model.weights]
