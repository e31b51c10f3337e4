"""Tests of deterministic replacements for Keras' random functions."""

import keras
import pytest
import tensorflow as tf

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
