"""Tables that are looked up and projected with, and low-rank adapters."""

import clipping_reference as reference
import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf.keras.clipping.factors.base import Layout, Product, add_factors
from tf_bandmf.keras.clipping.factors.tables import Rows
from tf_bandmf.keras.clipping.rules import rule_for
from tf_bandmf.keras.clipping.rules.per_example import PerExampleRule

layers = keras.layers


def language_model(vocabulary=5, width=4, length=7, adapted=False, **arguments):
    keras.utils.set_random_seed(0)
    embedding = layers.ReversibleEmbedding(vocabulary, width, **arguments)
    dense = layers.Dense(width, activation="tanh")
    heads = layers.EinsumDense("abc,cde->abde", (None, 2, 3), bias_axes="de")
    joined = layers.EinsumDense("abde,dec->abc", (None, width))
    inputs = keras.Input((length,), dtype="int32")
    x = joined(keras.ops.tanh(heads(dense(embedding(inputs)))))
    model = keras.Model(inputs, embedding(x, reverse=True))
    if adapted:
        for layer in (embedding, dense, heads, joined):
            layer.enable_lora(2)
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    reference.randomize(model)
    return model


MODELS = {
    "tied": {},
    "tied_large": {"vocabulary": 3000, "width": 16},
    "tied_masked_and_capped": {"mask_zero": True, "logit_soft_cap": 0.5},
    "untied": {"tie_weights": False},
    "adapted": {"adapted": True},
    "adapted_large": {"adapted": True, "vocabulary": 3000, "width": 16},
}


@pytest.mark.slow_cases(but=["tied"])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_equal_those_of_examples_one_by_one(name):
    model = language_model(**MODELS[name])
    x = reference.tokens()
    for layer in model.layers:
        if layer.trainable_variables:
            rule = rule_for(layer, layer.trainable_variables)
            assert not isinstance(rule, PerExampleRule), layer.name
    reference.assert_exact(model, x, np.roll(x, -1, axis=1))


def test_an_embedding_with_an_adapter():
    layer = layers.Embedding(5, 3)
    model = reference.classifier(layer, inputs=(7,), dtype="int32")
    layer.enable_lora(2)
    assert len(model.trainable_variables) == 4
    reference.randomize(model)
    reference.assert_exact(model, reference.tokens(), reference.labels())


def test_layers_that_train_within_a_frozen_one():
    class Frozen(layers.Layer):
        def __init__(self):
            super().__init__()
            self.inner = layers.Dense(4)
            self.other = layers.Dense(4)

        def build(self, shape):
            self.inner.build(shape)
            self.other.build(shape)

        def call(self, x):
            return self.other(keras.ops.tanh(self.inner(x)))

    block = Frozen()
    model = reference.classifier(block, inputs=(6, 4))
    block.trainable = False
    block.inner.trainable = True
    block.inner.enable_lora(2)
    assert not block.trainable_variables and len(model.trainable_variables) == 5
    reference.randomize(model)
    reference.assert_exact(model, reference.sequences(), reference.labels())


def random(*shape, seed=0):
    return tf.constant(np.random.default_rng(seed).normal(size=shape), tf.float32)


def table_factors(num_rows, terms, width=16):
    ids = tf.constant(
        np.random.default_rng(1).integers(0, num_rows, (3, terms)), tf.int32
    )
    ids = tf.tensor_scatter_nd_update(ids, [[0, 0], [1, 0], [1, 1]], [-1, 2, 2])
    rows = Rows(ids, random(3, terms, width), num_rows)
    layout = Layout.plain((num_rows, width))
    left, right = random(3, terms + 1, num_rows, seed=2), random(3, terms + 1, width)
    return rows, Product(left, right, layout)


@pytest.mark.invariant(17)
def test_lookups_that_cancel_a_projection():
    """What is added is a rounding error; its bound must not be below it."""
    rows, _ = table_factors(3000, terms=4)
    rows = Rows(tf.constant([[0, 7, 7, 9]] * 3), 1e4 * rows.values, 3000)
    opposite = Product(
        tf.one_hot(rows.ids, 3000), -rows.values, Layout.plain((3000, 16))
    )
    factor = add_factors([rows, opposite])
    measured = factor.measure()
    total = measured.weighted_sum(tf.constant([1.0, 0, 0]), list(measured.tensors))
    added = float(tf.norm(tf.cast(total, tf.float64)))
    assert float(measured.norms.bounds[0]) ** 0.5 >= added
    # As for any cancellation, the norm counts as at least a 256th of the terms' norms.
    terms = float(tf.reduce_sum(tf.norm(rows.values[0], axis=-1)))
    assert float(measured.norms.bounds[0]) ** 0.5 >= 2 * terms / 256 * 0.999
