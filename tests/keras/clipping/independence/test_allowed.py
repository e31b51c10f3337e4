"""What a step may contain is a list of what is allowed: attacks by what is not in it."""

import independence_cases as cases
import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf.keras.clipping import UnsupportedModelError

layers = keras.layers


def host(function, x, **options):
    actual = tf.numpy_function(function, [x], tf.float32, **options)
    return tf.ensure_shape(actual, x.shape)


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
    inner, plan = keras.optimizers.SGD(HostSchedule()), make_plan()
    cases.assert_fit_refuses(model, plan, data, "outside of the graph", inner)
