"""Layers that run for each example by itself are named, and refused if that matters."""

import keras
import pytest
import tensorflow as tf

import tf_bandmf.keras

MIXING = tf_bandmf.keras.UnsupportedModelError


class Centred(keras.layers.Layer):
    """What the batch looks like decides what an example becomes."""

    def call(self, x):
        return x - keras.ops.mean(x, axis=0, keepdims=True)


class Spectrum(keras.layers.Layer):
    """Sizes of frequencies, in raw TensorFlow, which the table of Keras does not know."""

    def call(self, x):
        return tf.abs(tf.signal.rfft(x))


@pytest.fixture
def fit(data, make_plan, compile_model):
    def run(layer, verbose=2, **settings):
        model = keras.Sequential([keras.Input((5,)), layer, keras.layers.Dense(3)])
        tf_bandmf.keras.make_private(model, **settings)
        plan = make_plan(epochs=1)
        inner = keras.optimizers.SGD(0.1)
        compile_model(model, tf_bandmf.keras.PrivateOptimizer(inner, plan))
        model.fit(plan.batches(*data), verbose=verbose)
        return model

    return run


def test_a_layer_whose_result_depends_on_others_is_refused_before_training(fit):
    with pytest.raises(MIXING, match=r"mixes the examples.*alone=\['centred'\]"):
        fit(Centred(name="centred"))


class Before(keras.layers.Layer):
    """What the examples before one add up to."""

    def call(self, x):
        return keras.ops.cumsum(x, axis=0)


class FirstOfAll(keras.layers.Layer):
    def call(self, x):
        return x - x[:1]


@pytest.mark.parametrize("kind", [Before, FirstOfAll])
def test_a_layer_that_leaves_the_first_example_as_it_is_is_refused(kind, fit):
    with pytest.raises(MIXING, match="mixes the examples"):
        fit(kind())


class Similarities(keras.layers.Layer):
    """How similar each example is to each of the batch: contrastive learning."""

    def call(self, x):
        return keras.ops.matmul(x, keras.ops.transpose(x))


def test_it_is_named_where_the_loss_cannot_take_what_it_makes_of_one(
    data, make_plan, compile_model
):
    layers = [keras.Input((5,)), keras.layers.Dense(4), Similarities(name="similar")]
    model = tf_bandmf.keras.make_private(keras.Sequential(layers))
    plan = make_plan(epochs=1)
    inner = keras.optimizers.SGD(0.1)
    compile_model(model, tf_bandmf.keras.PrivateOptimizer(inner, plan))
    with pytest.raises(MIXING, match=r"'similar'.*mixes the examples"):
        model.fit(plan.batches(*data), verbose=0)


def test_it_is_accepted_by_name_and_listed(fit, capsys):
    model = fit(Centred(name="centred"), alone=["centred"])
    assert model.optimizer.steps_taken == 4
    assert "on each example by itself" in capsys.readouterr().err


def test_a_layer_that_only_could_not_be_analysed_trains_and_is_listed(fit, capsys):
    fit(Spectrum(name="spectrum"))
    assert "spectrum (Spectrum)" in capsys.readouterr().err


def test_nothing_is_printed_where_nothing_shall_be(fit, capsys):
    fit(Spectrum(), verbose=0)
    assert "by itself" not in capsys.readouterr().err


def test_names_that_are_none_are_refused():
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    with pytest.raises(ValueError, match="no such layer"):
        tf_bandmf.keras.make_private(model, alone=["nothing"])
    with pytest.raises(ValueError, match="list of names"):
        tf_bandmf.keras.make_private(model, alone="dense")
