"""What a step may contain is a list of what is allowed: attacks by what is not in it."""

import independence_cases as cases
import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_bandmf.keras
from tf_bandmf.keras.clipping import UnsupportedModelError

layers = keras.layers


def rows(x):
    return tf.shape(x)[0]


def host(function, x, **options):
    found = tf.numpy_function(function, [x], tf.float32, **options)
    return tf.ensure_shape(found, x.shape)


def print_and_read(path):
    """A mean over the batch goes through a file, and comes back as a constant."""

    def call(x):
        mean = tf.reduce_mean(x)
        tf.print(mean, output_stream=f"file://{path}")
        text = tf.io.read_file(str(path))
        return x * tf.strings.to_number(tf.strings.split(text, "\n")[0])

    return call


def segments(x, segment_sum):
    """Each example's steps by their category, of which a large one is past the end."""
    category = tf.cast(tf.round(x[:, :, 0]), tf.int32)  # of 4
    return tf.map_fn(lambda e: segment_sum(e[0], e[1], 3), (x, category), x.dtype)


class Segments(layers.Layer):
    """Sums of an example's steps by categories; a category may be past the last one."""

    def __init__(self, segment_sum):
        super().__init__()
        self.segment_sum = segment_sum

    def call(self, x):
        # Of the batch as a whole, as if there were no batch: it is executed alone.
        flat = keras.ops.reshape(x, (-1, cases.WIDTH))
        category = keras.ops.cast(keras.ops.round(flat[:, 0] * 3), "int32")
        category = keras.ops.maximum(category, 0)
        found = self.segment_sum(flat, category, 3)
        return x + keras.ops.sum(found, axis=0)


LAYERS = {
    "host code without state": lambda x: host(
        lambda v: v * v.mean(), x, stateful=False
    ),
    "host code": lambda x: host(lambda v: v * v.mean(), x),
    "segments": lambda x: segments(x, tf.math.unsorted_segment_sum),
}


@pytest.mark.slow_cases("segments")
@pytest.mark.attack(
    "Operations that are not known to keep examples apart",
    tried="Host code that TensorFlow calls stateless, categories past the last segment.",
    area="inputs",
    invariants=[16],
)
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.invariant(16)
def test_what_is_not_listed_is_refused_or_alone(name):
    model = cases.model_with(cases.Custom(LAYERS[name]))
    try:
        assert cases.largest_change(model) <= 1 + 1e-3
    except UnsupportedModelError:
        pass


@pytest.mark.slow_cases("keras")
@pytest.mark.parametrize(
    "segment_sum",
    [keras.ops.segment_sum, lambda *given: tf.math.unsorted_segment_sum(*given)],
    ids=["keras", "tensorflow"],
)
@pytest.mark.invariant(16)
def test_a_category_past_the_end_is_nobodys(segment_sum):
    model = cases.model_with(Segments(segment_sum))
    assert cases.executed_alone(model)
    assert cases.largest_change(model) <= 1 + 1e-3


@pytest.mark.invariant(16)
def test_what_is_printed_to_a_file_is_refused(tmp_path):
    path = tmp_path / "mean"
    path.write_text("1.0\n")
    model = cases.model_with(cases.Custom(print_and_read(path)))
    with pytest.raises(UnsupportedModelError, match=r"ReadFile|PrintV2"):
        cases.clipping_of(model)(*cases.examples())


def test_printing_to_the_terminal_is_allowed(capfd):
    def call(x):
        tf.print("rows:", tf.shape(x)[0])
        return 2.0 * x

    cases.clipping_of(cases.model_with(cases.Custom(call)))(*cases.examples())
    assert "rows:" in capfd.readouterr().err


CLOSED = {
    "rescaling that adds an axis": lambda: layers.Rescaling(np.ones([1, 1, 1, 1])),
    "masking that adds an axis": lambda: layers.Masking(np.zeros([1, 1, 1, 1])),
    "an activation over the batch": lambda: layers.Dense(
        cases.WIDTH, activation=layers.UnitNormalization(axis=0)
    ),
    "an activation layer over the batch": lambda: layers.Activation(
        layers.UnitNormalization(axis=-3)
    ),
}


@pytest.mark.slow_cases("an activation layer over the batch")
@pytest.mark.attack(
    "Layers of Keras that are configured to mix examples",
    tried="Scales and mask values with more axes than the batch has; activations that "
    "normalize along the batch.",
    area="inputs",
    invariants=[16],
)
@pytest.mark.parametrize("name", CLOSED)
@pytest.mark.invariant(16)
def test_a_class_is_known_only_as_it_is_configured(name):
    try:
        model = cases.model_with(CLOSED[name]())
        assert cases.largest_change(model) <= 1 + 1e-3
    except (UnsupportedModelError, ValueError):
        pass


@pytest.mark.invariant(16)
def test_a_layer_inside_is_known_only_as_it_is_configured():
    class Attention(layers.Layer):
        def build(self, shape):
            self.inner = layers.MultiHeadAttention(1, 2)
            self.inner.build(shape, shape)
            self.inner._softmax.axis = 0

        def call(self, x):
            return self.inner(x, x)

    model = cases.model_with(Attention())
    try:
        assert cases.largest_change(model) <= 1 + 1e-3
    except UnsupportedModelError:
        pass


def test_an_honest_scale_stays_in_the_list():
    model = cases.model_with(layers.Rescaling([0.5] * cases.WIDTH, offset=1.0))
    assert cases.executed_alone(model) == ()
    assert cases.largest_change(model) <= 1 + 1e-3


def test_the_measure_sees_a_category_of_the_next_example():
    # The control: segments that are numbered through, as TensorFlow vectorizes them.
    class Numbered(layers.Layer):
        def call(self, x):
            first = 3 * tf.range(rows(x))[:, None]
            category = tf.cast(tf.abs(x[:, :, 0]) * 3, tf.int32) + first
            category = tf.minimum(category, 3 * rows(x) - 1)
            flat = tf.reshape(x, [-1, cases.WIDTH])
            found = tf.math.unsorted_segment_sum(
                flat, tf.reshape(category, [-1]), 3 * rows(x)
            )
            return (
                x + tf.reduce_sum(tf.reshape(found, [-1, 3, cases.WIDTH]), 1)[:, None]
            )

    x, _ = cases.examples()
    x[1] *= 30
    x[1, :, 0] = 1.2  # category 3 of 0 to 2: the first one of example 2
    layer = Numbered()
    alone = layer(tf.constant(x[2:3])).numpy()
    assert np.abs(layer(tf.constant(x)).numpy()[2] - alone[0]).max() > 0.1


class HostSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A rate that code of the host decides: it could have seen the batch."""

    def __call__(self, step):
        rate = tf.numpy_function(lambda: np.float32(0.1), [], tf.float32)
        return tf.ensure_shape(rate, [])


@pytest.mark.attack(
    "A learning rate from the host",
    tried="A metric leaves the mean of the batch with Python; the schedule fetches it.",
    area="inputs",
    invariants=[16],
)
@pytest.mark.invariant(16)
def test_updates_run_no_host_code(data, make_plan):
    model = keras.Sequential([keras.Input((5,)), layers.Dense(3)])
    plan = make_plan()
    tf_bandmf.keras.make_private(model)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    inner = keras.optimizers.SGD(HostSchedule())
    optimizer = tf_bandmf.keras.PrivateOptimizer(inner, plan)
    model.compile(optimizer, loss=loss)
    with pytest.raises(UnsupportedModelError, match="outside of the graph"):
        model.fit(plan.batches(*data), epochs=1, verbose=0)
