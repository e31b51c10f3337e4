"""Limiting TensorFlow to one round of graph optimizations, in one thread only."""

import threading

import pytest
import tensorflow as tf

from tf_bandmf.keras.compat.graphs import context
from tf_bandmf.keras.compat.optimizing import optimized_once


def rounds():
    options = context.context().function_call_options
    config = tf.compat.v1.ConfigProto.FromString(options.config_proto_serialized)
    return config.graph_options.rewrite_options.meta_optimizer_iterations


def test_it_is_for_this_thread_and_ends_with_the_body():
    assert rounds() == 0
    actual = []
    with optimized_once():
        thread = threading.Thread(target=lambda: actual.append(rounds()))
        thread.start()
        thread.join()
        assert rounds() == 1
        with pytest.raises(KeyError), optimized_once():
            raise KeyError
        assert rounds() == 1
    assert rounds() == 0 and actual == [0]


def test_functions_give_the_same_and_other_settings_stay():
    @tf.function
    def twice(x):
        return (x + 1.0) * 2.0

    tf.config.optimizer.set_experimental_options({"constant_folding": False})
    try:
        with optimized_once():
            assert float(twice(tf.constant(1.0))) == 4.0
            options = context.context().function_call_options
            config = tf.compat.v1.ConfigProto.FromString(
                options.config_proto_serialized
            )
            assert config.graph_options.rewrite_options.constant_folding == 2
    finally:
        tf.config.optimizer.set_experimental_options({"constant_folding": True})
    assert float(twice(tf.constant(1.0))) == 4.0
