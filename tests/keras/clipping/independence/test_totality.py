"""No record stops or stalls a step: positions, loops, sizes, bad values in metrics."""

import independence_cases as cases
import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf.keras.clipping import UnsupportedModelError

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


def counted_by_data(x):
    """A counter whose step is in the data: it may stand still."""
    return tf.while_loop(
        lambda i, v: (i < 9) & (tf.reduce_max(v) < 1e3),
        lambda i, v: [i + tf.cast(x[0, 0] > 0, tf.int32), v + 1],
        [0, x],
    )[1]


def smuggled(x):
    """The loop's state begins with constants, and is data after the first round."""

    def body(i, place, v):
        v = v + tf.raw_ops.GatherV2(params=x, indices=place, axis=0)
        return i + 1, tf.cast(x[0, 0] * 1e3, tf.int32), v

    return tf.while_loop(lambda i, *_: i < 3, body, [0, 0, x])[2]


STOPS = {
    "gather": each(lambda x: x + tf.raw_ops.GatherV2(params=x, indices=own(x), axis=0)),
    "gather, below alone": each(
        lambda x: (
            x + tf.raw_ops.GatherV2(params=x, indices=tf.minimum(own(x), 2), axis=0)
        )
    ),
    "gather, clipped to another size": each(
        lambda x: (
            x
            + tf.raw_ops.GatherV2(
                params=x, indices=tf.clip_by_value(own(x), 0, LENGTH), axis=0
            )
        )
    ),
    "gather, clipped as floats": each(
        lambda x: (
            x
            + tf.raw_ops.GatherV2(
                params=x,
                indices=tf.cast(tf.clip_by_value(x[0, :1], 0, 2), tf.int32),
                axis=0,
            )
        )
    ),
    "gather_nd": each(lambda x: x + tf.gather_nd(x, own(x)[:, None])),
    "scatter": each(lambda x: tf.tensor_scatter_nd_update(x, own(x)[:, None], x[:1])),
    "sparse product": each(
        lambda x: (
            x
            + tf.sparse.sparse_dense_matmul(
                tf.SparseTensor(
                    tf.cast(tf.stack([own(x), own(x)], 1), tf.int64), x[0, :1], [3, 3]
                ),
                x,
            )
        )
    ),
    "reshape by values": each(
        lambda x: tf.reshape(tf.reshape(x, tf.concat([own(x) + 1, [-1]], 0)), [3, 4])
    ),
    "a fixed shape": each(
        lambda x: x + tf.ensure_shape(tf.boolean_mask(x[0], x[0] > 0), [2])[0]
    ),
    "sizes": each(
        lambda x: x + tf.reduce_sum(tf.boolean_mask(x[0], x[0] > 0) + x[1, :2])
    ),
    "sorted segments": each(lambda x: x + tf.math.segment_sum(x, own(x) + [0, 0, 1])),
    "until it converges": each(until),
    "counted by data": each(counted_by_data),
    "a loop's state": each(smuggled),
    "zeta": each(lambda x: x + tf.math.zeta(2.0, x)),
    "eig": each(lambda x: x + tf.math.real(tf.linalg.eig(x[:3, :3])[0])[:, None]),
    "top k by a value": each(
        lambda x: x + tf.reduce_sum(tf.math.top_k(x[0], own(x)[0]).values)
    ),
    "parsed": each(lambda x: x + tf.strings.to_number(tf.strings.as_string(x[0, :1]))),
}


@pytest.mark.attack(
    "Values of a record that would end a step, or keep it running",
    tried="Positions beyond one end, loops until convergence, sizes that do not fit, "
    "functions that raise or do not come back, also in functions and loops inside.",
    area="inputs",
    invariants=[5, 18],
)
@pytest.mark.slow_cases(
    "gather, below alone",
    "gather, clipped to another size",
    "gather_nd",
    "scatter",
    "sorted segments",
    "counted by data",
    "zeta",
    "top k by a value",
    "parsed",
    "reshape by values",
    "until it converges",
    "a loop's state",
)
@pytest.mark.parametrize("name", STOPS)
@pytest.mark.invariant(18)
def test_what_a_record_could_stop_is_refused(name):
    with pytest.raises(UnsupportedModelError, match=r"one record|size that varies"):
        cases.clipping_of(cases.model_with(cases.Custom(STOPS[name])))(
            *cases.examples()
        )


def in_bounds(x):
    places = tf.math.floormod(own(x), LENGTH)
    clipped = tf.clip_by_value(own(x), 0, LENGTH - 1)
    found = tf.gather_nd(x, places[:, None]) + tf.raw_ops.GatherV2(
        params=x, indices=clipped, axis=0
    )
    largest = tf.raw_ops.GatherV2(params=x, indices=tf.argmax(x, 0), axis=0)
    return x + found + tf.reduce_sum(largest)


@tf.custom_gradient
def stops_backward(x):
    def gradient(upstream):
        small = tf.debugging.assert_less(tf.reduce_max(x), 100.0)
        with tf.control_dependencies([small]):
            return tf.identity(upstream)

    return tf.identity(x), gradient


@tf.custom_gradient
def looks_up_backward(x):
    def gradient(upstream):
        place = tf.cast(tf.reduce_max(x), tf.int32)
        found = tf.raw_ops.GatherV2(params=tf.ones([100]), indices=[place], axis=0)
        return upstream * found

    return tf.identity(x), gradient


def in_a_loop(x):
    # In a function that is called, too.
    called = tf.function(stops_backward, autograph=False)
    return tf.while_loop(lambda i, _: i < 2, lambda i, v: (i + 1, called(v)), [0, x])[1]


STOPPING_GRADIENTS = {
    "assertion": stops_backward,
    "gather": looks_up_backward,
    "in a loop": in_a_loop,
}


@pytest.mark.attack(
    "Values of a record that would end a step in its backward pass",
    tried="Custom gradients of a layer that runs alone which assert, or read beyond an "
    "end, also in loops and functions.",
    area="inputs",
    invariants=[18],
)
@pytest.mark.slow_cases("in a loop", "assertion")
@pytest.mark.parametrize("name", STOPPING_GRADIENTS)
@pytest.mark.invariant(18)
def test_a_gradient_that_a_record_could_stop_is_refused(name):
    function = STOPPING_GRADIENTS[name]

    @tf.function(autograph=False)
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x)

    # The control: it is a record that stops it.
    gradient(tf.ones([1, 4]))
    with pytest.raises(tf.errors.InvalidArgumentError), tf.device("CPU:0"):
        gradient(tf.fill([1, 4], 1e3))
    with pytest.raises(UnsupportedModelError, match="one record"):
        cases.clipping_of(cases.model_with(cases.Custom(function)))(*cases.examples())


class OnceTotal(cases.Custom):
    """A layer that stops for a record from its second trace for a single example on."""

    traces = 0

    def call(self, x):
        if x.shape[0] == 1:
            self.traces += 1
        if self.traces > 1:
            small = tf.debugging.assert_less(tf.reduce_max(x), 100.0)
            with tf.control_dependencies([small]):
                x = tf.identity(x)
        return x * self.function(x)


@pytest.mark.attack(
    "Values of a record that would end a step where a layer runs again",
    tried="A layer that asserts when it is traced again for its gradient.",
    area="inputs",
    invariants=[18],
)
@pytest.mark.invariant(18)
def test_what_a_layer_does_when_it_runs_again_is_analysed():
    mixing = OnceTotal(lambda x: tf.reduce_mean(x, axis=0, keepdims=True))
    # The control: it is the second trace that stops.
    with pytest.raises(tf.errors.InvalidArgumentError):
        mixing(tf.ones([1, 4])), mixing(tf.fill([1, 4], 1e3))
    mixing.traces = 0
    with pytest.raises(UnsupportedModelError, match="one record"):
        cases.clipping_of(cases.model_with(mixing))(*cases.examples())


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


def masked(y, predicted):
    return tf.reduce_mean(tf.boolean_mask((y - predicted) ** 2, y > 0))


def masked_unlike(y, predicted):
    errors = tf.boolean_mask((y - predicted) ** 2, y > 0)
    return tf.reduce_sum(errors * tf.constant([1.0, 2.0]))


@pytest.mark.invariant(18)
def test_a_masked_loss_is_allowed_and_sizes_that_may_not_fit_are_not():
    x, y = cases.examples()
    step = cases.clipping_of(cases.model_with(loss=masked))
    assert all(np.all(np.isfinite(s)) for s in step(x, y))
    with pytest.raises(UnsupportedModelError, match="one record"):
        cases.clipping_of(cases.model_with(loss=masked_unlike))(x, y)


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
