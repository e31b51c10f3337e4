"""What stops the program for some values of the data is refused, or made harmless."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf.keras.clipping import UnsupportedModelError, clipped_gradient_sums

BATCH, FEATURES = 4, 3


def of(function):
    """A model with one layer of the user's own."""

    class Own(keras.layers.Layer):
        def call(self, x):
            return function(x)

    inputs = keras.Input((FEATURES,))
    outputs = keras.layers.Dense(2)(Own()(keras.layers.Dense(FEATURES)(inputs)))
    model = keras.Model(inputs, outputs)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def sums(model, x, y):
    step = tf.function(
        lambda: clipped_gradient_sums(model, x, y, l2_norm_clip=1.0), autograph=False
    )
    return step()


def data():
    rng = np.random.default_rng(0)
    return tf.constant(rng.random((BATCH, FEATURES), "f4")), tf.constant([0, 1, 1, 0])


def asserted(x):
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(x < 9), [x])]):
        return tf.identity(x)


def asserted_in_a_branch(x):
    def stop():
        with tf.control_dependencies([tf.debugging.Assert(False, ["a record"])]):
            return tf.identity(x)

    return tf.cond(tf.reduce_max(x) > 9, stop, lambda: x)


def inverted(x):
    return tf.linalg.matvec(tf.linalg.inv(x[:, :, None] * x[:, None]), x)


def divided(x):
    whole = tf.cast(x, tf.int32)
    return x + tf.cast(tf.constant(7) // whole, tf.float32)


def looked_up(x):
    return x + tf.nn.embedding_lookup(tf.ones([5, 1]), tf.cast(x[:, 0], tf.int32))


def squares(x):
    return x[:, :, None] * x[:, None] + tf.eye(FEATURES)


def drawn(x):
    rate = tf.reduce_mean(x, axis=1)
    found = tf.random.stateless_poisson([3, BATCH], [1, 2], rate)
    return x + tf.cast(tf.reduce_sum(found), x.dtype)


def counted(x):
    found = tf.histogram_fixed_width(x, [0.0, 1.0], 5)
    return x * tf.cast(found[0], x.dtype)


STOPS = {
    "HistogramFixedWidth": counted,
    "StatelessRandomPoisson": drawn,
    "LogMatrixDeterminant": lambda x: x + tf.linalg.slogdet(squares(x))[1][:, None],
    "MatrixDeterminant": lambda x: x + tf.linalg.det(squares(x))[:, None],
    "Assert": asserted,
    "Assert in a branch": asserted_in_a_branch,
    "CheckNumerics": lambda x: tf.debugging.check_numerics(x, "not finite"),
    "MatrixInverse": inverted,
    "FloorDiv": divided,
    "GatherV2": looked_up,
}


@pytest.mark.parametrize("name", STOPS)
@pytest.mark.invariant(5)
def test_what_a_record_could_stop_is_refused(name):
    with pytest.raises(
        UnsupportedModelError, match="one record would end the"
    ) as found:
        sums(of(STOPS[name]), *data())
    assert name.split()[0] in str(found.value)
    assert "clip positions" in str(found.value)


def shape_asserted(x):
    tf.debugging.assert_equal(tf.shape(x)[1], FEATURES)
    return 2.0 * x


@pytest.mark.parametrize("function", [shape_asserted, lambda x: x / 0.5])
def test_what_shapes_alone_decide_is_not_refused(function):
    assert np.all(np.isfinite(sums(of(function), *data()).norms))


def at_own_positions(x):
    positions = tf.cast(x[:, :1] * 0 + tf.round(x[:, :1] * 100), tf.int32)
    return x + tf.gather(x, positions, axis=1, batch_dims=1)


@pytest.mark.invariant(5)
def test_a_position_out_of_bounds_counts_as_zero():
    model = of(at_own_positions)
    model.layers[1].kernel.assign(np.eye(FEATURES))
    x, y = data()
    x = tf.constant([[0.01, 1, 2], [0.02, 1, 2], [7.0, 1, 2], [-3.0, 1, 2]])
    norms = sums(model, x, y).norms.numpy()
    assert np.all(np.isfinite(norms[:2])) and np.all(norms[:2] > 0)
    assert not np.any(np.isfinite(norms[2:]))


@pytest.mark.slow_cases("-1")
@pytest.mark.parametrize("label", [-1, 9])
@pytest.mark.invariant(5)
def test_a_bad_label_of_the_first_record_does_not_stop_the_check(label):
    x, y = (np.array(part) for part in data())
    y[:] = label
    plan = tf_bandmf.plan(
        "identity",
        epsilon=1.0,
        delta=1e-5,
        num_examples=BATCH,
        batch_size=BATCH,
        epochs=1,
    )
    model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(2)])
    tf_bandmf.keras.make_private(model)
    optimizer = tf_bandmf.keras.PrivateOptimizer("sgd", plan)
    model.compile(
        optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    model.fit(plan.batches(x, y), verbose=0)
    assert optimizer.steps_taken == 1
