"""Constants that are made once: the same to the bit, and in the body's graph alone."""

import threading

import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf.keras.compat.constants import shared_constants


@pytest.fixture
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def test_a_number_that_is_written_again_is_the_same_operation(graph):
    x = tf.compat.v1.placeholder(tf.float32, [None, 3])
    with shared_constants():
        first, again = x[0] * 2.0, x[0] * 2.0
    with shared_constants():
        third = x[0] * 2.0
    # Three slices and products share [0] and [1], where they begin and end, and 2.0.
    assert len(graph.get_operations()) == 1 + 3 + 3 * 2
    assert first.op.inputs[1] is again.op.inputs[1] is third.op.inputs[1]
    assert (x[0] * 2.0).op.inputs[1] is not first.op.inputs[1]


def test_what_differs_in_a_bit_or_a_type_is_not_shared(graph):
    written = [
        *[(0.0, None), (-0.0, None), (0, None), (False, None), (0, tf.int64)],
        *[(0.0, tf.float64), ([0], None), ([0, 0], None), ([], None), ([], tf.int32)],
        *[(float("nan"), None), (float("inf"), None)],
        *[(0.1, tf.float64), (float(np.float32(0.1)), tf.float64)],
    ]
    with shared_constants():
        made = [tf.constant(*each) for each in written]
        made += [tf.constant(0.0, shape=[2]), tf.zeros([2, 0])]
        again = [tf.constant(*each) for each in written]
    assert len({id(tensor) for tensor in made}) == len(made)
    for one, other in zip(made, again):
        assert one is other
    with tf.compat.v1.Session(graph=graph) as session:
        values = session.run(made)
    assert np.signbit(values[1]) and not np.signbit(values[0])
    assert values[0].dtype == np.float32 and values[-3] != values[-4]


def test_other_graphs_devices_and_threads_have_constants_of_their_own(graph):
    found = []
    with shared_constants():
        usual = tf.constant(7)
        with tf.device("CPU:0"):
            assert tf.constant(7) is not usual
        with tf.control_dependencies([usual.op]):
            assert tf.constant(7) is usual
            assert not tf.constant(8).op.control_inputs
        with tf.Graph().as_default():
            inner = tf.constant(7)
            assert inner.graph is not graph and tf.constant(7) is not inner

        def elsewhere():
            with graph.as_default():
                found.append(tf.constant(7))

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert tf.constant(7) is usual
    assert found[0] is not usual
    assert tf.constant(7) is not usual


def test_eager_code_stays_as_it_is():
    with shared_constants():
        assert tf.constant(7) is not tf.constant(7)
