"""What is done to all tensors of a batch takes few operations of a graph."""

import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf.keras.clipping.tensors.batches import pad_batch, reshape_examples


def test_tensors_are_padded_by_zeros_behind():
    data = np.ones([2, 3], np.float32), np.ones([2], np.int32), None
    x, y, nothing = pad_batch((*map(tf.constant, data[:2]), None), tf.constant(1))
    np.testing.assert_array_equal(x, [[1, 1, 1], [1, 1, 1], [0, 0, 0]])
    np.testing.assert_array_equal(y, [1, 1, 0])
    assert nothing is None


def test_sizes_of_an_example_stay_known_and_tensors_share_what_is_common():
    def count(*shapes):
        with tf.Graph().as_default() as graph:
            given = [tf.compat.v1.placeholder(tf.float32, [None, *s]) for s in shapes]
            padded = pad_batch(given, tf.compat.v1.placeholder(tf.int32, []))
        assert [tuple(tensor.shape[1:]) for tensor in padded] == list(shapes)
        return len(graph.get_operations())

    # The placeholder, the padding, and what says how.
    assert count((3,), (), (4, 5)) == count((3,)) + 2 * 3


@pytest.mark.parametrize("shape", [(3,), (1, 3), (3, 1), (-1, 3)])
def test_examples_get_another_shape_and_their_number_is_what_it_was(shape):
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)

    @tf.function(input_signature=[tf.TensorSpec([None, None])])
    def reshaped(tensor):
        tensor.set_shape([None, 3])  # which nothing has checked
        return reshape_examples(tensor, *shape)

    np.testing.assert_array_equal(reshaped(rows), rows.reshape(2, *shape))
    if -1 in shape:
        assert len(reshaped(rows.reshape(1, 6))) == 1
    else:
        with pytest.raises(tf.errors.InvalidArgumentError):
            reshaped(rows.reshape(1, 6))


def test_an_axis_for_one_term_takes_few_operations():
    with tf.Graph().as_default() as graph:
        reshape_examples(tf.compat.v1.placeholder(tf.float32, [None, 3]), 1, 3)
    assert len(graph.get_operations()) == 4
