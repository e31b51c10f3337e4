"""Tests that all attempts to let one example of a batch affect the others fail."""

import functools

import clipping_reference as reference
import independence_cases as cases
import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import data, make_plan

from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError

layers = keras.layers
ops = keras.ops
attack = functools.partial(pytest.mark.attack, area="inputs")
pytestmark = pytest.mark.invariant(16)


def batch_size(x):
    return tf.shape(x)[0]


# Functions whose result for an example depends on the batch size.
CHOSEN_BY_SIZE = {
    "strided slice, begin": lambda x: x[:, batch_size(x) - 4 :],
    "roll": lambda x: tf.roll(x, batch_size(x), axis=1)[:, :1],
    "pad": lambda x: tf.pad(
        x, [[0, 0], [1, 0], [0, 0]], constant_values=tf.cast(batch_size(x), x.dtype)
    ),
    "slice of Keras": lambda x: x[:, ops.shape(x)[0] - 4 :],
    "repeat": lambda x: ops.repeat(x, ops.shape(x)[0], axis=1),
}


@pytest.mark.slow_cases("pad", "strided slice, begin")
@attack(
    "A layer whose slices depend on the batch size",
    tried="Slices, rolls, pads and repeats examples depending on the batch size.",
)
@pytest.mark.parametrize("name", CHOSEN_BY_SIZE)
def test_the_number_of_examples_cuts_nothing_out(name):
    cut = CHOSEN_BY_SIZE[name]
    cases.assert_harmless(
        lambda: cases.Custom(lambda x: x * ops.sum(cut(x), axis=1, keepdims=True))
    )


# Functions that give each position in the batch a random number that is the same at
# each step.
SEEDED = {
    "constant": lambda x, seed: tf.random.stateless_uniform(tf.shape(x), [1, 2]),
    "keras": lambda x, seed: keras.random.uniform(ops.shape(x), seed=7),
    "weight": lambda x, seed: tf.random.stateless_uniform(tf.shape(x), seed),
}


class Seeded(cases.Custom):
    def build(self, shape):
        self.seed = self.add_weight((2,), "ones", "int32", trainable=False)

    def call(self, x):
        return x * self.function(x, self.seed._value)


@pytest.mark.slow_cases("constant", "weight")
@attack(
    "Random numbers from a known seed",
    tried="Multiplies each position in the batch by a random number that is the same "
    "at each step, because the seed is a constant or a weight.",
)
@pytest.mark.parametrize("kind", SEEDED)
def test_a_known_seed_numbers_no_places(kind):
    cases.assert_harmless(lambda: Seeded(SEEDED[kind]))


def pooled(attention, x):
    """Applies attention with one query per example and a mask of the wrong rank."""
    query = ops.mean(x, axis=1, keepdims=True)
    mask = ops.mean(x, axis=-1) > 0  # Keras reads this mask [B, T] as [1, 1, B, T].
    actual = attention(query, x, attention_mask=mask)
    return x + ops.mean(actual, axis=1, keepdims=True)


@pytest.mark.slow
@attack(
    "A mask that attention broadcasts over the batch",
    tried="Passes a mask of shape [B, T] as attention_mask. Keras broadcasts it, so "
    "each example would be combined with the masks of all examples.",
)
@pytest.mark.parametrize("kind", ["MultiHeadAttention", "GroupQueryAttention"])
def test_a_mask_of_sequences_is_no_attention_mask(kind):
    arguments = (4, 2, 1) if kind == "GroupQueryAttention" else (1, 3)
    attention = getattr(layers, kind)(*arguments)
    cases.assert_harmless(lambda: reference.Around(attention, pooled))


@pytest.mark.slow_cases("softmax", "sparsemax")
@attack(
    "The last axis of a vector is the batch",
    tried="Applies activations and masking, which act along the last axis, to a vector "
    "that has one number for each example.",
)
@pytest.mark.parametrize("kind", ["softmax", "sparsemax", "masking"])
def test_the_last_axis_of_a_vector_is_the_batch(kind):
    inner = layers.Masking(0.0) if kind == "masking" else layers.Activation(kind)

    def call(inner, x):
        of_one_number = inner(ops.mean(x, axis=(1, 2)))
        return x * (1.0 + 10.0 * of_one_number[:, None, None])

    cases.assert_harmless(lambda: reference.Around(inner, call))


class KeptInSeed(layers.Layer):
    """A layer that stores data in a random generator's state and later reads them."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.seeds = keras.random.SeedGenerator(0)
        self.numbers = tf.random.Generator.from_seed(1, alg="philox")

    def call(self, x):
        total = tf.reduce_sum(tf.abs(x)) * 1e3
        if self.kind == "generator":
            kept = tf.cast(self.numbers.state[0], x.dtype)
            self.numbers.skip(tf.cast(total, tf.int64))
        else:
            state = self.seeds.state._value
            kept = tf.cast(state[0], x.dtype)
            self.seeds.next()
            actual = tf.cast(tf.stack([total, total]), state.dtype)
            if self.kind == "function":
                tf.function(state.assign)(actual)
            else:
                state.assign(actual)
        return x * (1.0 + kept / 1e3)


@attack(
    "Data in the counter of a random generator",
    tried="Stores a batch sum in a random generator, and reads it one step later.",
)
@pytest.mark.parametrize("kind", ["seed", "function", "generator"])
def test_counters_of_generators_keep_no_data(kind):
    with pytest.raises(
        UnsupportedModelError, match=r"changes a variable|the same numbers again"
    ):
        cases.largest_change(cases.model_with(KeptInSeed(kind)))


class WritesElsewhere(keras.metrics.Metric):
    """A metric that assigns the sum of the labels to a variable that a layer reads."""

    def __init__(self, place):
        super().__init__()
        self.place = lambda: place

    def update_state(self, y, p, sample_weight=None):
        self.place().assign(tf.reduce_sum(tf.cast(y, tf.float32)))

    def result(self):
        return 0.0


@attack(
    "Metrics that write to variables that a layer reads",
    tried="A metric assigns the sum of the labels to a variable that no Keras object "
    "tracks, and a layer multiplies by this variable in the next step.",
)
def test_metrics_write_no_variables_of_others():
    place = tf.Variable(0.0, trainable=False)
    reads = cases.Custom(lambda x: x * (1.0 + tf.convert_to_tensor(place)))
    model = keras.Sequential([keras.Input((5,)), reads, layers.Dense(3)])
    inner, metrics = keras.optimizers.SGD(0.0), [WritesElsewhere(place)]
    reference.assert_fit_refuses(
        model, make_plan(), data, "metric", inner, metrics=metrics
    )


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, loss):
        self.loss = loss

    def __call__(self, step):
        return 0.1 + self.loss()

    def get_config(self):
        return {}


class Reads(keras.constraints.Constraint, keras.regularizers.Regularizer):
    def __init__(self, loss):
        self.loss = loss

    def __call__(self, weight):
        return weight + self.loss()


class Subtracts(keras.optimizers.SGD):
    def __init__(self, loss):
        super().__init__(0.1)
        self.loss = loss

    def update_step(self, gradient, variable, learning_rate):
        variable.assign(variable - self.loss() * gradient)


@pytest.mark.slow_cases("constraint", "regularizer", "inner")
@attack(
    "The training loss in the update of the weights",
    tried="A learning rate schedule, a constraint, a regularizer or an inner optimizer "
    "reads the exact training loss from Keras' loss metric during the step.",
)
@pytest.mark.parametrize("kind", ["schedule", "constraint", "regularizer", "inner"])
def test_updates_read_no_metrics(kind):
    model = keras.Sequential([keras.Input((5,)), layers.Dense(3)])

    def loss():
        # The model has no loss metric until it is compiled.
        tracker = getattr(model, "_loss_tracker", None)
        return 0.0 if tracker is None else tf.convert_to_tensor(tracker.total)

    # In eager mode, Keras applies the constraint after the private update. With a
    # learning rate of 0, the update changes no weight, so any change would come from
    # the constraint.
    inner = keras.optimizers.SGD(0.0 if kind == "constraint" else 0.1)
    if kind == "schedule":
        inner = keras.optimizers.SGD(Schedule(loss))
    elif kind == "inner":
        inner = Subtracts(loss)
    else:
        setattr(model.layers[0].kernel, kind, Reads(loss))
    reference.assert_fit_refuses(model, make_plan(), data, "metric", inner)


def print_and_read(path):
    """Returns a function that writes the batch mean to a file and reads it back."""

    def call(x):
        mean = tf.reduce_mean(x)
        tf.print(mean, output_stream=f"file://{path}")
        text = tf.io.read_file(str(path))
        return x * tf.strings.to_number(tf.strings.split(text, "\n")[0])

    return call


def segments(x, segment_sum):
    """Sums each example's time steps by category; some categories are out of range."""
    # There are three segments, but a category can be above 2.
    category = tf.cast(tf.round(x[:, :, 0]), tf.int32)
    return tf.map_fn(lambda e: segment_sum(e[0], e[1], 3), (x, category), x.dtype)


def segments_in_a_function(x):
    """Sums segments inside a nested tf.function, which TensorFlow also vectorizes."""
    inner = tf.function(tf.math.unsorted_segment_sum, autograph=False)
    flat = tf.reshape(x, [-1, cases.WIDTH])
    category = tf.cast(tf.clip_by_value(flat[:, 0] * 3, 0, 2), tf.int32)
    return x + tf.reduce_sum(inner(flat, category, 3), 0)


def host(x):
    actual = tf.numpy_function(lambda v: v * v.mean(), [x], x.dtype, stateful=False)
    return tf.ensure_shape(actual, x.shape)


LAYERS = {
    "host code without state": host,
    "segments": lambda x: segments(x, tf.math.unsorted_segment_sum),
    "segments in a function": segments_in_a_function,
}


@pytest.mark.slow_cases("segments")
@attack(
    "Operations that are not known to keep examples apart",
    tried="Python code that is registered as stateless; segment ids out of range.",
)
@pytest.mark.parametrize("name", LAYERS)
def test_what_is_not_listed_is_refused_or_alone(name):
    cases.assert_harmless(lambda: cases.Custom(LAYERS[name]))


def test_what_is_printed_to_a_file_is_not_read(tmp_path):
    path = tmp_path / "mean"
    path.write_text("1.0\n")
    model = cases.model_with(cases.Custom(print_and_read(path)))
    with pytest.raises(UnsupportedModelError, match="ReadFile"):
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
@attack(
    "Layers of Keras that are configured to mix examples",
    tried="Rescales or masks with values that have more axes than the batch, or uses "
    "an activation that normalizes along the batch axis.",
)
@pytest.mark.parametrize("name", CLOSED)
def test_a_class_is_known_only_as_it_is_configured(name):
    cases.assert_harmless(CLOSED[name])


class HostSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate computed by Python code, which could have seen the batch."""

    def __call__(self, step):
        rate = tf.numpy_function(lambda: np.float32(0.1), [], tf.float32)
        return tf.ensure_shape(rate, [])


@attack(
    "A learning rate from the host",
    tried="A schedule runs Python code, which could read the data of the batch.",
)
def test_updates_run_no_host_code():
    model = keras.Sequential([keras.Input((5,)), layers.Dense(3)])
    inner, plan = keras.optimizers.SGD(HostSchedule()), make_plan()
    reference.assert_fit_refuses(model, plan, data, "outside of the graph", inner)
