"""Layers of TensorFlow's own operations that no record stops are not refused."""

import independence_cases as cases
import keras
import numpy as np
import pytest
import tensorflow as tf

LENGTH, WIDTH = cases.LENGTH, cases.WIDTH


def each(function):
    """Of the first example, which is the only one of a layer that is executed alone."""
    return lambda x: function(x[0])[None] + tf.zeros_like(x)


def own(x):
    """The positions of one example, chosen by `where`: never below a bound."""
    return tf.where(x[0, :1] > 0.5, tf.cast(x[0, :1] * 1e3, tf.int32), 0)


def until(x, **options):
    return tf.while_loop(
        lambda v: tf.reduce_max(tf.abs(v)) > 1e-3, lambda v: [v * 0.5], [x], **options
    )[0]


def in_bounds(x):
    places = tf.math.floormod(own(x), LENGTH)
    clipped = tf.clip_by_value(own(x), 0, LENGTH - 1)
    actual = tf.gather_nd(x, places[:, None]) + tf.raw_ops.GatherV2(
        params=x, indices=clipped, axis=0
    )
    largest = tf.raw_ops.GatherV2(params=x, indices=tf.argmax(x, 0), axis=0)
    return x + actual + tf.reduce_sum(largest)


@tf.custom_gradient
def straight_through(x):
    return tf.round(x), lambda upstream: tf.where(tf.abs(x) < 1, upstream, 0.0)


HONEST = {
    "a gradient of its own": straight_through,
    "in bounds": each(in_bounds),
    "a loop with a bound": each(lambda x: until(x, maximum_iterations=12)),
    "keras": lambda x: x + keras.ops.take_along_axis(x, keras.ops.argsort(x, 1), 1),
}


@pytest.mark.slow_cases("a gradient of its own", "in bounds", "a loop with a bound")
@pytest.mark.parametrize("name", HONEST)
def test_what_ends_for_all_values_is_not_refused(name):
    x, y = cases.examples()
    x[1], x[2] = np.nan, np.inf
    sums = cases.clipping_of(cases.model_with(cases.Custom(HONEST[name])))(x, y)
    assert all(np.all(np.isfinite(s)) for s in sums)


def test_segments_in_a_function_inside_are_not_numbered_through():
    # TensorFlow vectorizes what a layer calls, too.
    inner = tf.function(
        lambda x, s: tf.math.unsorted_segment_sum(x, s, 3), autograph=False
    )

    class Segments(keras.layers.Layer):
        def call(self, x):
            flat = tf.reshape(x, [-1, WIDTH])
            category = tf.cast(tf.clip_by_value(flat[:, 0] * 3, 0, 2), tf.int32)
            return x + tf.reduce_sum(inner(flat, tf.clip_by_value(category, 0, 2)), 0)

    model = cases.model_with(Segments())
    assert cases.largest_change(model) <= 1 + 1e-3
