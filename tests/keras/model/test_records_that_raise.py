"""A record that makes model, loss or gradient raise adds zero; wrong programs raise."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from same_weights import flat
from small_plans import small_plan

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf.keras.clipping import UnsupportedModelError

EXAMPLES, FEATURES, BAD = 8, 4, 5
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def own_layer(function):
    class Own(keras.layers.Layer):
        def call(self, x):
            return function(x)

    return Own()


def trained(function, x, y, weights=None, steps=2):
    """Returns the weights after a run without dropout and with fixed noise."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(FEATURES, kernel_initializer="identity"),
            own_layer(function),
            keras.layers.Dense(3),
        ]
    )
    plan = small_plan("bsr:2", EXAMPLES, EXAMPLES, steps, epsilon=8.0, test_seed=1)
    tf_bandmf.keras.make_private(model)
    optimizer = tf_bandmf.keras.PrivateOptimizer(keras.optimizers.SGD(0.1), plan)
    model.compile(optimizer, CROSS_ENTROPY, metrics=["accuracy"])
    model.fit(plan.batches(x, y, weights), epochs=steps, verbose=0)
    assert optimizer.steps_taken == steps
    return flat(model)


def data():
    rng = np.random.default_rng(0)
    x = rng.uniform(0.1, 0.9, (EXAMPLES, FEATURES)).astype("f4")
    return x, rng.integers(0, 3, EXAMPLES)


def asserted(x):
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(x < 9), [x])]):
        return tf.identity(x)


def looked_up(x):
    place = tf.cast(x, tf.int32)
    return x + tf.raw_ops.GatherV2(params=tf.ones([5]), indices=place, axis=0)


@tf.custom_gradient
def asserted_backward(x):
    def gradient(upstream):
        small = tf.debugging.assert_less(tf.reduce_max(x), 9.0)
        with tf.control_dependencies([small]):
            return tf.identity(upstream)

    return tf.identity(x), gradient


def parsed(x):
    text = tf.where(x < 9.0, tf.strings.as_string(x), "no number")
    return tf.strings.to_number(text)


RAISING = {
    "an assertion": asserted,
    "a position": looked_up,
    "a gradient": asserted_backward,
    "a text": parsed,
    "not finite": lambda x: tf.debugging.check_numerics(x / tf.nn.relu(9.0 - x), "x"),
}


@pytest.mark.attack(
    "Values of a record that would end a step",
    tried="Assertions, positions beyond an end, texts that are not numbers, in "
    "layers and in custom gradients: the record adds zero, and the other records add the "
    "same as without it.",
    area="inputs",
    invariants=[5, 18],
)
@pytest.mark.slow_cases("a position", "a text", "not finite")
@pytest.mark.parametrize("name", RAISING)
@pytest.mark.invariant(18)
def test_a_record_that_raises_adds_zero(name):
    x, y = data()
    weights = np.ones(EXAMPLES, "f4")
    weights[BAD] = 0.0
    without = trained(RAISING[name], x, y, weights)
    x[BAD] = 10.0
    moved = trained(RAISING[name], x, y, np.ones(EXAMPLES, "f4"))
    assert np.all(np.isfinite(moved))
    # Sums that differ in last bits may be rounded to neighbors on the grid.
    np.testing.assert_allclose(moved, without, atol=1e-4)


@pytest.mark.invariant(18)
def test_records_that_all_raise_add_zero():
    x, y = data()
    none = trained(asserted, x, y, np.zeros(EXAMPLES, "f4"))
    moved = trained(asserted, 10.0 + x, y, np.ones(EXAMPLES, "f4"))
    np.testing.assert_allclose(moved, none, atol=1e-6)


def broken(x):
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(x > 1e9), [x])]):
        return tf.identity(x)


@pytest.mark.attack(
    "A mistake in the program that raises for each example",
    tried="A layer whose assertion fails for every input: nothing is trained on noise "
    "alone, and no budget is lost.",
    area="inputs",
    invariants=[6],
)
@pytest.mark.invariant(6)
def test_what_raises_for_made_up_examples_is_the_programs_fault():
    x, y = data()
    with pytest.raises(UnsupportedModelError, match="raises for made-up examples"):
        trained(broken, x, y)
