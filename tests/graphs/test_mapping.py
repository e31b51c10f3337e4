"""A function of each example by itself, in graphs and eagerly."""

import pytest
import tensorflow as tf

from tf_bandmf.graphs.mapping import map_each


def refused(_):
    raise ValueError("refused")


@pytest.mark.parametrize("eagerly", [False, True])
def test_rows_are_those_of_each_example(eagerly):
    def doubled(x):
        return map_each(lambda row: 2.0 * row, x, tf.TensorSpec([2], tf.float32))

    x = tf.ones([3, 2])
    found = doubled(x) if eagerly else tf.function(doubled)(x)
    assert found.numpy().tolist() == [[2.0, 2.0]] * 3


def test_a_function_that_raises_leaves_tensorflow_as_it_was():
    def traced(x):
        return map_each(refused, x, tf.TensorSpec([2], tf.float32))

    with pytest.raises(ValueError, match="refused"):
        tf.function(traced, autograph=False).get_concrete_function(tf.ones([3, 2]))
    assert tf.compat.v1.get_variable_scope().caching_device is None
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        pass
