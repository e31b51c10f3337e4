"""Layers that draw in loops: each round anew, and the gradient is of what was drawn."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_plans import planned

from tf_bandmf.keras import (
    PrivateOptimizer,
    UnsupportedModelError,
    make_private,
)
from tf_bandmf.keras.clipping import clipped_gradient_sums
from tf_bandmf.keras.compat.seeds import seeds_from

WEIGHT = 2.0


def rounds(count, body, start):
    return tf.while_loop(lambda i, _: i < count, body, (0, start))[1]


class Noisy(keras.layers.Layer):
    """w (z_1 - z_2), of draws of two rounds: its gradient is what it returns over w."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seed_generator = keras.random.SeedGenerator(0)

    def build(self, shape):
        self.w = self.add_weight(shape=(), initializer=lambda *_, **__: WEIGHT)

    def drawn(self, x):
        return self.w * keras.random.normal(tf.shape(x), seed=self.seed_generator)

    def call(self, x):
        def body(i, h):
            return i + 1, h + tf.cast(1 - 2 * i, x.dtype) * self.drawn(x)

        return rounds(2, body, 0 * x)


class Nested(Noisy):
    """Signs (+, -), then (-, +): nothing is left if rounds of either loop draw the same."""

    def call(self, x):
        def outer(i, h):
            def inner(j, k):
                sign = tf.cast((1 - 2 * i) * (1 - 2 * j), x.dtype)
                return j + 1, k + sign * self.drawn(x)

            return i + 1, rounds(2, inner, h)

        return rounds(2, outer, 0 * x)


class Branching(Noisy):
    def compute_output_shape(self, shape):
        return shape

    def call(self, x):
        def body(i, h):
            less, more = (lambda: h - self.drawn(x)), (lambda: h + self.drawn(x))
            return i + 1, tf.cond(i > 0, less, more)

        return rounds(2, body, 0 * x)


class Alone(Noisy):
    """Its reshape forgets where the examples are, so that it runs for each by itself."""

    def call(self, x):
        return tf.reshape(tf.reshape(super().call(x), [-1]), tf.shape(x))


class Mapped(Noisy):
    """Each feature by itself, as `tf.map_fn` does it, also without randomness."""

    def call(self, x):
        def one(column):
            return column[0] * self.drawn(column[1])

        signs = tf.constant([1.0, -1.0])
        columns = (signs, tf.stack([x, x]))
        return tf.reduce_sum(
            tf.map_fn(one, columns, fn_output_signature=tf.float32), axis=0
        )


def model_of(layer):
    model = keras.Sequential([keras.Input((4,)), layer])
    model.compile(loss=lambda y, outputs: keras.ops.mean(outputs, axis=-1))
    make_private(model)
    return model


@pytest.mark.parametrize("layer", [Noisy, Nested, Branching, Alone, Mapped])
@pytest.mark.slow_cases("Noisy", "Branching", "Mapped", "Alone")
def test_the_gradient_is_of_what_each_round_drew(layer):
    x = np.ones((5, 4), np.float32)
    model = model_of(layer())
    clipped = clipped_gradient_sums(model, x, np.zeros((5, 1)), l2_norm_clip=100.0)
    outputs = clipped.outputs.numpy()
    # Rounds, examples and features have numbers of their own.
    assert len(np.unique(outputs)) == outputs.size
    means = outputs.mean(axis=-1) / WEIGHT
    np.testing.assert_allclose(clipped.norms, np.abs(means), rtol=1e-4)
    np.testing.assert_allclose(clipped.sums[0], means.sum(), rtol=1e-4)


class InFunction(Noisy):
    def call(self, x):
        return tf.function(self.drawn, autograph=False)(x)


def test_a_draw_in_a_function_is_refused():
    model = model_of(InFunction())
    with pytest.raises(UnsupportedModelError, match=r"within a `tf.function`"):
        clipped_gradient_sums(
            model, np.ones((5, 4)), np.zeros((5, 1)), l2_norm_clip=1.0
        )


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


class Loop(keras.layers.Layer):
    """A cell that is run three times, with dropout in between."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seed_generator = keras.random.SeedGenerator(3)

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1], shape[-1]))

    def call(self, x, training=False):
        def body(i, h):
            h = tf.tanh(h @ self.w)
            if training:
                h = keras.random.dropout(h, 0.3, seed=self.seed_generator)
            return i + 1, h

        return rounds(3, body, x)


@pytest.mark.slow
def test_it_trains():
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32)
    plan = planned(
        "identity",
        epsilon=8.0,
        delta=1e-4,
        num_examples=24,
        batch_size=8,
        epochs=1,
        test_seed=0,
    )
    model = keras.Sequential([keras.Input((4,)), Loop(), keras.layers.Dense(1)])
    make_private(model)
    model.compile(PrivateOptimizer(keras.optimizers.SGD(0.1), plan), "mse")
    model.fit(plan.batches(x, x[:, :1]), epochs=1, verbose=0)
    assert model.optimizer.steps_taken == plan.num_steps
