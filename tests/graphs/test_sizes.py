"""Sizes that values of data decide about: what may not fit them is found."""

import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf.graphs.totality import stopping_operations
from tf_bandmf.graphs.walking import Scope

SHAPE = (3, 4)


def positive(x):
    return tf.boolean_mask(x, x > 0)


def rows(x):
    return tf.boolean_mask(x, x[:, 0] > 0)


def called(function):
    return tf.function(function, autograph=False)


def first_is_positive(x, then, other):
    return tf.cond(x[0, 0] > 0, lambda: then, lambda: other)


def said_to_be_three(x):
    found = positive(x)
    found.set_shape([3])
    return tf.concat([found, x[:, 0]], 0) * tf.ones([6])


def rounds(x, body, state, shape):
    """As many rounds as the first number says, 9 at most."""
    return tf.while_loop(
        lambda i, _: (i < 9) & (tf.cast(i, tf.float32) < x[0, 0]),
        lambda i, state: (i + 1, body(state)),
        [0, state],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape(shape)],
    )[1]


def pushed(x):
    found = rounds(
        x,
        lambda held: tf.raw_ops.TensorListPushBack(input_handle=held, tensor=x[0]),
        tf.raw_ops.EmptyTensorList(
            element_shape=[4], max_num_elements=-1, element_dtype=tf.float32
        ),
        [],
    )
    stacked = tf.raw_ops.TensorListStack(
        input_handle=found, element_shape=[4], element_dtype=tf.float32
    )
    return stacked + x


def grown(x):
    return rounds(x, lambda v: tf.concat([v, v], 0), x[0], [None]) + tf.ones([8])


def lists(length):
    return tf.TensorArray(tf.float32, length, element_shape=[4])


def divided(x):
    return 7 // tf.size(positive(x))


def asserted(x):
    tf.debugging.assert_less(tf.size(positive(x)), 5)
    return tf.identity(x)


def of_two(x):
    first, second = called(lambda x: (positive(x), positive(-x)))(x)
    return first + second


STOPS = {
    "a fixed shape": lambda x: tf.ensure_shape(positive(x), [3]),
    "in a function": lambda x: called(lambda v: tf.ensure_shape(v, [3]))(positive(x)),
    "a static shape that is not": said_to_be_three,
    "pushed": pushed,
    "grown": grown,
    "unpacked": lambda x: tf.unstack(positive(x), 3)[0],
    "squeezed": lambda x: tf.squeeze(positive(x), 0),
    "squeezed, any": lambda x: tf.squeeze(rows(x)) + tf.ones([2, 4]),
    "the first": lambda x: positive(x)[0],
    "the last": lambda x: positive(x)[-1],
    "gathered": lambda x: tf.raw_ops.GatherV2(params=positive(x), indices=[1], axis=0),
    "the best": lambda x: tf.argmax(positive(x)),
    "parts": lambda x: positive(x)[1:] * positive(x)[:2],
    "padded": lambda x: tf.pad(positive(x), [[1, 2]]) * positive(x),
    "top k": lambda x: tf.math.top_k(positive(x), 2).values,
    "reshaped": lambda x: tf.reshape(positive(x), [-1, 2]),
    "flat": lambda x: tf.reshape(rows(x), [-1]) + rows(x)[:, 0],
    "branches": lambda x: first_is_positive(x, x[:3], x[:2]) + x,
    "branches, fixed": lambda x: tf.ensure_shape(
        first_is_positive(x, x[:1], x[:2]), [2, 4]
    ),
    "branches, lists": lambda x: (
        tf.cond(x[0, 0] > 0, lambda: lists(2), lambda: lists(3)).stack() + x
    ),
    "two of a function": of_two,
    "a divisor": divided,
    "asserted": asserted,
    "a shape": lambda x: tf.reshape(tf.zeros([6]), [tf.size(positive(x)), -1]),
    "a count of ones": lambda x: (
        7 // tf.reduce_sum(tf.ones_like(positive(x), tf.int32))
    ),
    "ones in a function": lambda x: (
        7 // tf.reduce_sum(called(tf.ones_like)(tf.cast(positive(x), tf.int32)))
    ),
    "zeros": lambda x: tf.zeros(tf.shape(positive(x))) + positive(-x),
    "sorted with others": lambda x: tf.sort(positive(x)) + positive(-x),
    "best of others": lambda x: (
        tf.math.top_k(positive(x), tf.size(positive(-x))).values
    ),
    "as few": lambda x: tf.reshape(x, [tf.shape(positive(x))[0], 1]),
    "a product": lambda x: tf.matmul(rows(x), tf.ones([3, 3]), transpose_a=True),
    "joined": lambda x: tf.concat([rows(x), tf.ones([3, 1])], 1),
    "stacked": lambda x: tf.stack([positive(x), positive(-x)]),
    "listed": lambda x: (
        tf.TensorArray(tf.float32, 2, infer_shape=False)
        .write(0, positive(x))
        .write(1, x[0])
        .stack()
    ),
    "segments": lambda x: tf.math.unsorted_segment_sum(positive(x), [0, 0, 1], 2),
    "scattered": lambda x: tf.scatter_nd([[0], [1]], positive(x), [4]),
    "losses": lambda x: tf.nn.sparse_softmax_cross_entropy_with_logits(
        [0] * 3, rows(x)
    ),
    "selected": lambda x: tf.where(x > 0, x, rows(x)),
}


def stopping(function):
    graph = called(function).get_concrete_function(tf.TensorSpec(SHAPE)).graph
    scope = Scope({id(tensor): True for tensor in graph.inputs})
    found = stopping_operations(graph.get_operations(), scope, graph.outputs, {})
    return [op.type for op, _ in found]


def of_sum(function):
    """Results are of one shape, so that only what is inside can be found."""
    return lambda x: tf.reduce_sum(tf.cast(function(x), tf.float32))


def tried():
    for count in range(13):
        x = -np.ones(12, "f4")
        x[:count] = 1 + count % 4
        yield x.reshape(SHAPE)


def records_that_stop(function):
    traced = called(function).get_concrete_function(tf.TensorSpec(SHAPE))
    count = 0
    for x in tried():
        try:
            traced(tf.constant(x))
        except (tf.errors.InvalidArgumentError, tf.errors.InternalError):
            count += 1
    return count


@pytest.mark.attack(
    "Sizes that values decide about",
    tried="Entries that a mask leaves, branches and loops of other sizes, given to what "
    "checks or needs one size; also with a static shape that is not true. As a control, "
    "some records are run: each of these functions raises for some.",
    area="inputs",
    invariants=[5, 18],
)
@pytest.mark.parametrize("name", STOPS)
@pytest.mark.invariant(18)
def test_a_size_that_may_not_fit_is_found(name):
    function = of_sum(STOPS[name])
    assert stopping(function)
    assert 0 < records_that_stop(function)


def test_a_loop_until_a_size_is_found():
    def until(x):
        count = tf.size(positive(x))
        return tf.while_loop(lambda i: i != count, lambda i: [i + 2], [1])[0]

    assert stopping(until) == ["StatelessWhile"] or stopping(until) == ["While"]


def test_a_result_of_another_size_is_found():
    assert stopping(positive)


def weights_of_unique(x):
    _, places, counts = tf.unique_with_counts(tf.cast(x[0], tf.int32))
    exist = (places >= 0) & (places < tf.shape(counts)[0])
    return tf.gather(counts, tf.where(exist, places, 0))


def of_one_mask(x):
    mask = x > 0
    return tf.boolean_mask(x, mask) - tf.boolean_mask(2 * x, mask)


def gram(x):
    found = rows(x)
    return tf.matmul(found, found, transpose_a=True)


def made_for_a_mask(x):
    found = positive(x)
    noise = tf.random.stateless_normal(tf.shape(found), [1, 2])
    ones = tf.cast(tf.ones_like(found, tf.int32), tf.float32)
    same = tf.reshape(noise, [tf.shape(found)[0]]) + tf.broadcast_to(
        1.0, tf.shape(found)
    )
    return tf.sort(found) + tf.sort(found, direction="DESCENDING") + ones + same


HONEST = {
    "mean": lambda x: tf.reduce_mean(positive(x)),
    "deviation": lambda x: tf.math.reduce_std(positive(x)) + tf.norm(positive(x)),
    "one mask": of_one_mask,
    "dense": lambda x: tf.nn.relu(tf.matmul(rows(x), tf.ones([4, 3])) + tf.ones([3])),
    "pairs": lambda x: positive(x)[:, None] * positive(-x)[None],
    "gram": gram,
    "softmax": lambda x: tf.nn.softmax(rows(x)),
    "an open shape": lambda x: tf.ensure_shape(rows(x), [None, 4]),
    "columns": lambda x: tf.unstack(rows(x), axis=1)[0],
    "branches": lambda x: first_is_positive(x, x, -x) + x,
    "a branch": lambda x: tf.cond(
        x[0, 0] > 0, lambda: tf.reduce_mean(positive(x)), lambda: 0.0
    ),
    "a loop": lambda x: rounds(x, lambda v: v * 0.5, x, SHAPE) + x,
    "count": lambda x: 1 / tf.cast(tf.maximum(tf.size(positive(x)), 1), tf.float32),
    "joined": lambda x: tf.concat([positive(x), positive(-x)], 0),
    "blocks": lambda x: tf.reshape(rows(x), [-1, 2, 2]),
    "a function": lambda x: called(positive)(x) * 2,
    "unique": weights_of_unique,
    "picked": lambda x: tf.gather(x, tf.where(x[:, 0] > 0)[:, 0]),
    "made for a mask": made_for_a_mask,
    "sorted places": lambda x: tf.argsort(positive(x)),
    "an open loop": lambda x: tf.reshape(
        tf.while_loop(
            lambda i, v: i < tf.shape(x)[0],
            lambda i, v: [i + 1, tf.concat([v[1:], v[:1]], 0)],
            [0, x],
            shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, None])],
        )[1],
        [-1],
    ),
    "a default": lambda x: tf.compat.v1.placeholder_with_default(positive(x), [None]),
    "a list": lambda x: tf.cond(
        x[0, 0] > 0, lambda: lists(3).write(0, x[0]), lambda: lists(3).write(1, x[1])
    ).stack(),
}


@pytest.mark.parametrize("name", HONEST)
def test_what_always_fits_is_not_refused(name):
    function = of_sum(HONEST[name])
    assert not stopping(function)
    assert not records_that_stop(function)
