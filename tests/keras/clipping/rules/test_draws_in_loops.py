"""Tests that random layers in loops draw new numbers, which their gradients reuse."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf.keras import make_private
from tf_bandmf.keras.clipping.sums.clipped_sums import clipped_gradient_sums
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.compat.seeds import seeds_from

WEIGHT = 2.0


def rounds(count, body, start):
    return tf.while_loop(lambda i, _: i < count, body, (0, start))[1]


class Noisy(keras.layers.Layer):
    """A layer with output w times random numbers, so its gradient is output / w."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.seed_generator = keras.random.SeedGenerator(0)

    def build(self, shape):
        self.w = self.add_weight(shape=(), initializer=lambda *_, **__: WEIGHT)

    def compute_output_shape(self, shape):
        return shape

    def drawn(self, x):
        return self.w * keras.random.normal(tf.shape(x), seed=self.seed_generator)

    def call(self, x):
        return self.function(self.drawn, x)


def looped(drawn, x):
    def body(i, h):
        return i + 1, h + tf.cast(1 - 2 * i, x.dtype) * drawn(x)

    return rounds(2, body, 0 * x)


def nested(drawn, x):
    """Sums draws with alternating signs; the sum is 0 if iterations repeat draws."""

    def outer(i, h):
        def inner(j, k):
            sign = tf.cast((1 - 2 * i) * (1 - 2 * j), x.dtype)
            return j + 1, k + sign * drawn(x)

        return i + 1, rounds(2, inner, h)

    return rounds(2, outer, 0 * x)


def branching(drawn, x):
    def body(i, h):
        return i + 1, tf.cond(i > 0, lambda: h - drawn(x), lambda: h + drawn(x))

    return rounds(2, body, 0 * x)


def alone(drawn, x):
    """Merges and restores the batch axis, so the layer must run on single examples."""
    return tf.reshape(tf.reshape(looped(drawn, x), [-1]), tf.shape(x))


def mapped(drawn, x):
    """Subtracts the draws of two `tf.map_fn` iterations, which must not be equal."""
    parts = tf.constant([1.0, -1.0]), tf.stack([x, x])
    actual = tf.map_fn(lambda p: p[0] * drawn(p[1]), parts, tf.float32)
    return tf.reduce_sum(actual, axis=0)


FUNCTIONS = {f.__name__: f for f in (looped, nested, branching, alone, mapped)}
FUNCTIONS["once"] = lambda drawn, x: drawn(x)


def clipped(function):
    x = np.ones((5, 4), np.float32)
    model = keras.Sequential([keras.Input((4,)), Noisy(function)])
    model.compile(loss=lambda y, outputs: keras.ops.mean(outputs, axis=-1))
    make_private(model)
    return clipped_gradient_sums(model, x, np.zeros((5, 1)), l2_norm_clip=100.0)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.slow_cases("looped", "branching", "mapped", "alone")
def test_the_gradient_is_of_what_each_round_drew(name):
    result = clipped(FUNCTIONS[name])
    outputs = result.outputs.numpy()
    # No number is repeated between iterations, examples or features.
    assert len(np.unique(outputs)) == outputs.size
    means = outputs.mean(axis=-1) / WEIGHT
    np.testing.assert_allclose(result.norms, np.abs(means), rtol=1e-4)
    np.testing.assert_allclose(result.sums[0], means.sum(), rtol=1e-4)


def test_a_draw_in_a_function_is_refused():
    with pytest.raises(UnsupportedModelError, match=r"in a `tf.function`"):
        clipped(lambda drawn, x: tf.function(drawn, autograph=False)(x))


def test_seeds_that_are_given_differ_between_rounds():
    generator = keras.random.SeedGenerator(0)

    @tf.function(autograph=False)
    def drawn():
        def body(i, actual):
            value = keras.random.uniform((), seed=generator)
            return i + 1, tf.tensor_scatter_nd_update(actual, [[i]], [value])

        with seeds_from(lambda: tf.constant([3, 4], tf.int64)):
            return rounds(6, body, tf.zeros([6]))

    first = drawn().numpy()
    assert len(np.unique(first)) == 6
    np.testing.assert_array_equal(first, drawn())
