"""Derivatives taken within a model: the gradient of the weights has all of it, or none."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf.keras.clipping import clipped_gradient_sums

layers, ops = keras.layers, keras.ops
CLIP = 0.5
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(6, 4)).astype("f4"), RNG.normal(size=(6, 1)).astype("f4")


def one_sided(slope):
    return ops.relu(slope - 0.1) ** 2


def two_sided(slope):
    return (slope - 1) ** 2


class Penalized(layers.Layer):
    """A score, and a penalty of its slope in the input."""

    def __init__(self, penalty):
        super().__init__()
        self.penalty = penalty
        self.inner, self.outer = layers.Dense(5, "tanh"), layers.Dense(1)

    def build(self, shape):
        self.inner.build(shape)
        self.outer.build((None, 5))

    def call(self, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            score = self.outer(self.inner(x))
        slope = tape.gradient(score, x)
        length = ops.sqrt(ops.sum(slope**2, axis=-1, keepdims=True) + 1e-12)
        return score + self.penalty(length)


class Critic(keras.Model):
    """Takes the derivative itself."""

    def __init__(self):
        super().__init__()
        self.score = layers.Dense(1)

    def call(self, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            score = self.score(ops.tanh(x))
        slope = tape.gradient(score, x)
        return score + ops.sum(slope**2, axis=-1, keepdims=True)


def clipped(model):
    model.compile(loss="mse")
    step = tf.function(
        lambda x, y: clipped_gradient_sums(model, x, y, l2_norm_clip=CLIP).sums,
        autograph=False,
    )
    return step(tf.constant(X), tf.constant(Y))


def penalized(penalty):
    return keras.Sequential([keras.Input((4,)), Penalized(penalty)])


MODELS = {
    "one sided": lambda: penalized(one_sided),
    "two sided": lambda: penalized(two_sided),
    "in the model itself": Critic,
}


@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_a_penalty_are_those_of_each_example(name):
    keras.utils.set_random_seed(0)
    model = MODELS[name]()
    model(X)
    expected = [np.zeros(v.shape) for v in model.trainable_variables]
    for x, y in zip(X, Y, strict=True):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x[None]) - y) ** 2)
        gradients = tape.gradient(
            loss,
            [v.value for v in model.trainable_variables],
            unconnected_gradients="zero",
        )
        share = tf.minimum(1.0, CLIP / tf.linalg.global_norm(gradients))
        for part, gradient in zip(expected, gradients, strict=True):
            part += np.asarray(share * gradient)
    for actual, total in zip(clipped(model), expected, strict=True):
        np.testing.assert_allclose(actual, total, atol=2e-4)
