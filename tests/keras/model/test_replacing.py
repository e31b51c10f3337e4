"""Tests that `replace_batch_norm` replaces batch normalization and no other layer."""

import keras
import numpy as np
import pytest

import tf_bandmf.keras


def _network():
    inner = keras.Sequential(
        [
            keras.Input((8, 8, 12)),
            keras.layers.Conv2D(6, 3, use_bias=False),
            keras.layers.BatchNormalization(scale=False),
        ],
        name="inner",
    )
    x = inputs = keras.Input((8, 8, 12))
    x = keras.layers.BatchNormalization(epsilon=1e-2, name="first")(x)
    x = keras.layers.Flatten()(inner(x))
    return keras.Model(inputs, keras.layers.Dense(3)(x))


def test_other_weights_scale_and_offset_are_kept():
    model = _network()
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(size=w.shape) ** 2 for w in model.get_weights()])
    made = tf_bandmf.keras.replace_batch_norm(model, groups=5)
    first = made.get_layer("first")
    assert isinstance(first, keras.layers.GroupNormalization)
    assert (first.groups, first.epsilon) == (4, 1e-2)
    assert made.get_layer("inner").layers[-1].groups == 3
    kept = {w.path.split("/", 1)[-1]: w for w in model.trainable_weights}
    assert len(made.weights) == len(kept) == 6
    for weight in made.weights:
        np.testing.assert_array_equal(weight, kept[weight.path.split("/", 1)[-1]])
    x = rng.normal(size=(2, 8, 8, 12)).astype(np.float32)
    alone = np.concatenate([made(x[:1], training=True), made(x[1:], training=True)])
    np.testing.assert_allclose(made(x, training=True), alone, rtol=1e-5)


def test_the_refusal_of_batch_normalization_names_it():
    model = _network()
    with pytest.raises(
        tf_bandmf.keras.extending.UnsupportedModelError, match="replace_batch_norm"
    ):
        tf_bandmf.keras.make_private(model)
    tf_bandmf.keras.make_private(tf_bandmf.keras.replace_batch_norm(model))
