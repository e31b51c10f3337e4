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
    # Kernels [5, 4] and [4, 3].
    assert found.fan_in == 5 + 4
    for now, then in zip(model.get_weights(), before, strict=True):
        assert np.array_equal(now, then)


def test_the_fan_in_is_of_what_a_unit_sees():
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((6, 6, 4)),
            layers.Conv2D(8, 3),  # 3 * 3 * 4
            layers.DepthwiseConv2D(2),  # 2 * 2
            layers.SeparableConv2D(5, 3),  # 3 * 3, then 8
            layers.Reshape((5,)),
            layers.EinsumDense("ab,bcd->acd", (2, 3)),  # 5
            layers.EinsumDense("acd,cde->ae", 7),  # 2 * 3
            layers.Dense(3, trainable=False),
        ]
    )
    model.compile(loss="mse")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 6, 6, 4)), rng.normal(size=(8, 3))
    found = tf_bandmf.keras.sample_gradients(
        model, x.astype(np.float32), y.astype(np.float32)
    )
    assert found.fan_in == 36 + 4 + 9 + 8 + 5 + 6


def test_batches_are_traced_once_for_each_of_two_sizes():
    traced = []

    class Counted(keras.layers.Dense):
        def call(self, inputs, training=None):
            traced.append(inputs.shape)
            return super().call(inputs)

    def traces(batch_size):
        model = keras.Sequential([keras.Input((5,)), Counted(3)])
        model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        traced.clear()
        tf_bandmf.keras.sample_gradients(model, X, Y, batch_size=batch_size)
        return len(traced)

    assert traces(4) == traces(len(X) // 2 + 1) > 0


def test_advice_takes_it():
    found = tf_bandmf.keras.sample_gradients(compiled(), X, Y)
    advice = tf_bandmf.advise(
        num_examples=600,
        epsilon=4.0,
        delta=1e-4,
        epochs=4,
        sampling="fixed-order",
        mechanism="bisr:4",
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
