"""Keras' random functions without chance, and what they draw in graphs."""

import keras
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from tf_bandmf.keras.compat import fixed_draws

random = keras.random
CALLS = {
    "dropout": lambda seed: random.dropout(tf.ones([3]), 0.5, seed=seed),
    "normal": lambda seed: random.normal([3], seed=seed),
    "truncated_normal": lambda seed: random.truncated_normal([3], seed=seed),
    "uniform": lambda seed: random.uniform([3], seed=seed),
    "randint": lambda seed: random.randint([3], 2, 9, seed=seed),
    "shuffle": lambda seed: random.shuffle(tf.range(9), seed=seed),
    "categorical": lambda seed: random.categorical(tf.zeros([1, 9]), 3, seed=seed),
    "gamma": lambda seed: random.gamma([3], 2.0, seed=seed),
    "binomial": lambda seed: random.binomial([3], 9.0, 0.5, seed=seed),
    "beta": lambda seed: random.beta([3], 2.0, 3.0, seed=seed),
}


def test_every_random_function_of_keras_is_known():
    assert set(CALLS) == set(fixed_draws._FUNCTIONS)
    public = {name for name in dir(random) if name.islower() and name[0] != "_"}
    assert public == set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_left_to_chance(name):
    usual = CALLS[name](0)
    with fixed_draws.without_randomness():
        first, second = CALLS[name](0), CALLS[name](1)
    assert first.shape == usual.shape and first.dtype == usual.dtype
    tf.debugging.assert_equal(first, second)


def test_a_copy_leaves_on_the_host_what_no_device_has():
    @tf.function(autograph=False)
    def checked(x):
        # There is none here; on a GPU, that is so for texts.
        with tf.device("/GPU:0"):
            return x + 1.0

    concrete = checked.get_concrete_function(tf.TensorSpec([]))
    copy = fixed_draws.FixedCopy(concrete, "copy_of_checked", ())
    assert float(copy(tf.constant(1.0))) == 2.0


@pytest.mark.parametrize(
    "name", ["dropout", "normal", "truncated_normal", "uniform", "randint"]
)
def test_a_copy_of_a_function_draws_what_eager_code_draws(name):
    generator = random.SeedGenerator(3)
    with fixed_draws.noted_draws() as noted:
        traced = tf.function(lambda: CALLS[name](generator), autograph=False)
        concrete = traced.get_concrete_function()
    assert noted and fixed_draws.can_draw_constants(concrete, noted)
    drawn = tuple(op.name for op in noted)
    copy = fixed_draws.FixedCopy(concrete, f"copy_{name}", drawn)
    with fixed_draws.constants_drawn():
        expected = CALLS[name](0)
    tf.debugging.assert_equal(copy(), expected)
    # Other code goes on drawing.
    assert bool(tf.reduce_any(concrete() != concrete()))


def test_loops_and_branches_of_a_copy_stay_functions():
    def looped(x):
        condition = lambda i, total: i < 5  # noqa: E731
        _, found = tf.while_loop(condition, lambda i, t: (i + 1, t + x), [0, 0.0 * x])
        return tf.cond(x > 0.0, lambda: found, lambda: -found)

    traced = tf.function(looped, autograph=False)
    concrete = traced.get_concrete_function(tf.TensorSpec([], tf.float32))
    copy = fixed_draws.FixedCopy(concrete, "copy_with_loops", ())
    made = context.context().get_function_def("copy_with_loops")
    kinds = {"StatelessWhile", "StatelessIf"}
    found = [node for node in made.node_def if node.op in kinds]
    own = [node for node in concrete.function_def.node_def if node.op in kinds]
    assert len(found) == len(own) == 2
    # TensorFlow calls it so: else this would cost, and not save.
    assert all(fixed_draws._LOWERED in node.attr for node in own)
    assert not any(fixed_draws._LOWERED in node.attr for node in found)
    assert [float(copy(tf.constant(x))) for x in (2.0, -2.0)] == [10.0, 10.0]
