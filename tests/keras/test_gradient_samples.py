"""`sample_gradients`: what advice takes from public or made-up data."""

import numpy as np
import pytest
import tensorflow as tf

keras = pytest.importorskip("keras", minversion="3.12")

import tf_bandmf  # noqa: E402
import tf_bandmf.keras  # noqa: E402

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 5)).astype(np.float32)
Y = RNG.integers(0, 3, 30)


def compiled():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Dense(4, activation="tanh"),
            keras.layers.Dense(3),
        ]
    )
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def gradients(model):
    """Of each example by itself, [m, d]."""
    rows = []
    for i in range(len(X)):
        with tf.GradientTape() as tape:
            loss = model.loss(Y[i : i + 1], model(X[i : i + 1]))
        found = tape.gradient(loss, model.trainable_weights)
        rows.append(np.concatenate([np.ravel(one) for one in found]))
    return np.array(rows)


def test_it_is_the_sample_of_each_example_s_gradient():
    model = compiled()
    before = [np.array(weight) for weight in model.get_weights()]
    found = tf_bandmf.keras.sample_gradients(model, X, Y, batch_size=16)
    wanted = tf_bandmf.GradientSample.of_gradients(gradients(model))
    assert found.norms == pytest.approx(wanted.norms, rel=1e-5)
    assert found.alignment == pytest.approx(wanted.alignment, abs=1e-3)
    assert found.num_parameters == wanted.num_parameters == 39
    # Kernels [5, 4] and [4, 3]: 32 weights of 7 outputs.
    assert found.fan_in == pytest.approx(32 / 7)
    for now, then in zip(model.get_weights(), before, strict=True):
        assert np.array_equal(now, then)


def test_advice_takes_it():
    found = tf_bandmf.keras.sample_gradients(compiled(), X, Y)
    advice = tf_bandmf.advise(
        num_examples=600,
        epsilon=4.0,
        delta=1e-4,
        epochs=4,
        sampling="fixed-order",
        public_gradients=found,
    )
    assert advice.l2_norm_clip == pytest.approx(0.1 * np.median(found.norms), rel=0.01)
    assert advice.alignment == found.alignment
    assert "guess" not in dict(advice.reasons)["learning rate"]


def test_errors():
    with pytest.raises(TypeError, match=r"model must be a keras\.Model"):
        tf_bandmf.keras.sample_gradients("model", X, Y)
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    with pytest.raises(ValueError, match="The model has no loss"):
        tf_bandmf.keras.sample_gradients(model, X, Y)
    with pytest.raises(ValueError, match="batch_size must be"):
        tf_bandmf.keras.sample_gradients(compiled(), X, Y, batch_size=0)
    with pytest.raises(ValueError, match="At least two gradients"):
        tf_bandmf.keras.sample_gradients(compiled(), X[:1], Y[:1])
