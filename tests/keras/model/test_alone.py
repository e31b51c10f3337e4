"""Tests layers that run on single examples: all are reported, and some are refused.

A layer is refused if its result for a single example differs from its result for the
same example in a batch.
"""

import keras
import pytest
import tensorflow as tf
from small_models import Custom, centred, data, make_plan, make_private_model

import tf_bandmf.keras

MIXING = tf_bandmf.keras.extending.UnsupportedModelError


class Spectrum(keras.layers.Layer):
    """Computes a spectrum with a TensorFlow operation unknown to the analysis."""

    def call(self, x):
        return tf.abs(tf.signal.rfft(x))


def fit(*middle, **settings):
    plan, layers = make_plan(epochs=1), [keras.Input((5,)), *middle]
    model = make_private_model(plan, model=layers, settings=settings)
    model.fit(plan.batches(*data), verbose=0)
    return model


def test_a_layer_whose_result_depends_on_others_is_refused_before_training():
    with pytest.raises(MIXING, match=r"mixes the examples.*alone=\['centred'\]"):
        fit(Custom(centred, name="centred"), keras.layers.Dense(3))


class Similarities(keras.layers.Layer):
    """Returns the similarity of each pair of examples, as in contrastive learning."""

    def call(self, x):
        return keras.ops.matmul(x, keras.ops.transpose(x))


def test_it_is_named_where_the_loss_cannot_take_what_it_makes_of_one():
    with pytest.raises(MIXING, match=r"'similar'.*mixes the examples"):
        fit(keras.layers.Dense(4), Similarities(name="similar"))


def test_it_is_accepted_by_name_and_listed():
    layers = Custom(centred, name="centred"), keras.layers.Dense(3)
    with pytest.warns(UserWarning, match="on each example by itself"):
        model = fit(*layers, alone=["centred"])
    assert model.optimizer.steps_taken == 4


def test_a_layer_that_could_not_be_analysed_trains_and_is_listed():
    with pytest.warns(UserWarning, match=r"by itself.* spectrum \(Spectrum\)"):
        fit(Spectrum(name="spectrum"), keras.layers.Dense(3))


def test_names_that_are_none_are_refused():
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    with pytest.raises(ValueError, match="must name layers of the model"):
        tf_bandmf.keras.make_private(model, alone=["nothing"])
    with pytest.raises(ValueError, match="list of layer names"):
        tf_bandmf.keras.make_private(model, alone="dense")
