"""Which operations of a graph values of data can stop, and what depends on data."""

import pytest
import tensorflow as tf

from tf_bandmf.graphs.totality import stopping_operations
from tf_bandmf.graphs.walking import Scope


def found(function):
    """Types of the operations of a function of x [?, 4] that x can stop."""
    spec = tf.TensorSpec([None, 4], tf.float32)
    graph = tf.function(function, autograph=False).get_concrete_function(spec).graph
    scope = Scope({id(graph.inputs[0]): True})
    operations = graph.get_operations()
    return {
        op.type for op, _ in stopping_operations(operations, scope, graph.outputs, {})
    }


def one_by_one(x):
    """A cell's loop over time, with a random number, as in a recurrent layer."""

    def body(time, total, written):
        kept = total * tf.random.uniform([]) + rows.read(time)
        return time + 1, kept, written.write(time, kept)

    rows = tf.TensorArray(tf.float32, 4, element_shape=[]).unstack(x)
    written = tf.TensorArray(tf.float32, 4, element_shape=[])
    start = [0, tf.zeros([]), written]
    return tf.while_loop(lambda time, *_: time < 4, body, start)[2].stack()


def chosen(limit):
    """A list as long as a branch says that data do not decide about, but `limit` may."""

    def function(x):
        @tf.function(autograph=False)
        def both(x):
            return tf.reduce_sum(x), tf.shape(x)[0]

        total, count = both(x)
        size = tf.cast(total, tf.int32) if limit == "data" else count
        size = tf.cond(tf.shape(x)[0] > 3, lambda: size, lambda: tf.constant(2))
        return tf.TensorArray(tf.float32, size, element_shape=[4]).stack()

    return function


def test_a_vectorized_loop_over_time_is_total():
    assert found(lambda x: tf.vectorized_map(one_by_one, x)) == set()


@pytest.mark.invariant(18)
def test_results_of_a_function_depend_on_what_they_are_made_of():
    assert found(chosen("shape")) == set()
    assert found(chosen("data")) == {"TensorListReserve"}


@pytest.mark.invariant(18)
def test_the_length_of_a_list_that_data_decide_about_depends_on_them():
    def function(x):
        pushed = tf.raw_ops.EmptyTensorList(
            element_shape=tf.zeros([0], tf.int32),
            max_num_elements=9,
            element_dtype=tf.float32,
        )
        pushed = tf.cond(
            x[0, 0] > 0,
            lambda: tf.raw_ops.TensorListPushBack(input_handle=pushed, tensor=1.0),
            lambda: pushed,
        )
        length = tf.raw_ops.TensorListLength(input_handle=pushed)
        return tf.TensorArray(tf.float32, length, element_shape=[4]).stack()

    assert "TensorListReserve" in found(function)
