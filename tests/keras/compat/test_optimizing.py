"""Tests that `optimized` allows one round of TensorFlow's graph optimizations.

It does not affect other threads.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest
import tensorflow as tf

from tf_bandmf.keras.compat.graphs import context
from tf_bandmf.keras.compat.optimizing import optimized


def rounds():
    options = context.context().function_call_options
    config = tf.compat.v1.ConfigProto.FromString(options.config_proto_serialized)
    return config.graph_options.rewrite_options.meta_optimizer_iterations


def test_it_is_for_this_thread_and_ends_with_the_body():
    with optimized(), ThreadPoolExecutor(1) as threads:
        assert rounds() == 1 and threads.submit(rounds).result() == 0
        with pytest.raises(KeyError), optimized():
            raise KeyError
        assert rounds() == 1
    assert rounds() == 0
