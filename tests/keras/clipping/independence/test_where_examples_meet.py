"""Ways by which the examples of a batch could meet, each of which is refused."""

import independence_cases as cases
import keras
import pytest
import tensorflow as tf

from tf_bandmf.keras.clipping import UnsupportedModelError

layers = keras.layers
ops = keras.ops


def batch_size(x):
    return tf.shape(x)[0]


# Entries of each example that the number of examples chooses.
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
@pytest.mark.attack(
    "A layer that cuts by the size of the batch",
    tried="Slices, splits, rolls and pads each example by the number of examples.",
    area="inputs",
    invariants=[16],
)
@pytest.mark.parametrize("name", CHOSEN_BY_SIZE)
@pytest.mark.invariant(16)
def test_the_number_of_examples_cuts_nothing_out(name):
    cut = CHOSEN_BY_SIZE[name]
    layer = cases.Custom(lambda x: x * ops.sum(cut(x), axis=1, keepdims=True))
    try:
        assert cases.largest_change(cases.model_with(layer)) <= 1 + 1e-3
    except UnsupportedModelError:
        pass


class Seeded(layers.Layer):
    """Noise for each place in the batch, the same at each step."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def build(self, shape):
        self.seed = self.add_weight(
            shape=(2,), initializer="ones", trainable=False, dtype="int32"
        )

    def call(self, x):
        if self.kind == "keras":
            return x * keras.random.uniform(ops.shape(x), seed=7)
        seed = [1, 2] if self.kind == "constant" else self.seed._value
        return x * tf.random.stateless_uniform(tf.shape(x), seed=seed)


@pytest.mark.slow_cases("constant", "weight")
@pytest.mark.attack(
    "Random numbers of a known seed",
    tried="Gives each place in the batch a number that is the same at each step, from a "
    "constant seed or one in a weight.",
    area="inputs",
    invariants=[16],
)
@pytest.mark.parametrize("kind", ["constant", "keras", "weight"])
@pytest.mark.invariant(16)
def test_a_known_seed_numbers_no_places(kind):
    try:
        assert cases.largest_change(cases.model_with(Seeded(kind))) <= 1 + 1e-3
    except UnsupportedModelError:
        pass


class Pooled(layers.Layer):
    """One query that attends to the steps that a mask of sequences names."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def build(self, shape):
        self.attention.build((shape[0], 1, shape[2]), shape)

    def call(self, x):
        query = ops.mean(x, axis=1, keepdims=True)
        mask = ops.mean(x, axis=-1) > 0  # [B, T], broadcast to [1, 1, B, T].
        actual = self.attention(query, x, attention_mask=mask)
        return x + ops.mean(actual, axis=1, keepdims=True)


@pytest.mark.slow
@pytest.mark.attack(
    "A mask that attention broadcasts over the batch",
    tried="Gives attention_mask the shape of a mask of sequences, where Keras meets every "
    "example with the masks of all.",
    area="inputs",
    invariants=[16],
)
@pytest.mark.parametrize("kind", ["MultiHeadAttention", "GroupQueryAttention"])
@pytest.mark.invariant(16)
def test_a_mask_of_sequences_is_no_attention_mask(kind):
    grouped = kind == "GroupQueryAttention"
    arguments = (4, 2, 1) if grouped else (1, 3)
    model = cases.model_with(Pooled(getattr(layers, kind)(*arguments)))
    try:
        assert cases.largest_change(model) <= 1 + 1e-3
    except UnsupportedModelError:
        pass


class OneNumber(layers.Layer):
    """A layer of Keras on one number for each example, whose last axis is the batch."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, x):
        return x * (1.0 + 10.0 * self.inner(ops.mean(x, axis=(1, 2)))[:, None, None])


@pytest.mark.slow_cases("softmax", "sparsemax")
@pytest.mark.attack(
    "The last axis of a vector is the batch",
    tried="Calls activations along the last axis, and masking, on one number for each "
    "example.",
    area="inputs",
    invariants=[16],
)
@pytest.mark.parametrize("kind", ["softmax", "sparsemax", "masking"])
@pytest.mark.invariant(16)
def test_the_last_axis_of_a_vector_is_the_batch(kind):
    inner = layers.Masking(0.0) if kind == "masking" else layers.Activation(kind)
    try:
        model = cases.model_with(OneNumber(inner))
        assert cases.largest_change(model) <= 1 + 1e-3
    except UnsupportedModelError:
        pass


class KeptInSeed(layers.Layer):
    """Writes the data into the counter of a generator, and reads them a step later."""

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


@pytest.mark.attack(
    "Data in the counter of a random generator",
    tried="Advances a generator by a sum over the batch, which the next step reads.",
    area="inputs",
    invariants=[16],
)
@pytest.mark.parametrize("kind", ["seed", "function", "generator"])
@pytest.mark.invariant(16)
def test_counters_of_generators_keep_no_data(kind):
    with pytest.raises(
        UnsupportedModelError, match=r"changes a variable|cannot be repeated"
    ):
        cases.largest_change(cases.model_with(KeptInSeed(kind)))


class WritesElsewhere(keras.metrics.Metric):
    """Keeps the labels where a layer reads them."""

    def __init__(self, place):
        super().__init__()
        self.place = lambda: place

    def update_state(self, y, p, sample_weight=None):
        self.place().assign(tf.reduce_sum(tf.cast(y, tf.float32)))

    def result(self):
        return 0.0


def plain():
    return keras.Sequential([keras.Input((5,)), layers.Dense(3)])


@pytest.mark.attack(
    "Metrics that write for others to read",
    tried="A metric assigns the labels to a variable of nobody, which a layer multiplies "
    "with at the next step.",
    area="inputs",
    invariants=[16],
)
@pytest.mark.invariant(16)
def test_metrics_write_no_variables_of_others(data, make_plan):
    place = tf.Variable(0.0, trainable=False)
    reads = cases.Custom(lambda x: x * (1.0 + tf.convert_to_tensor(place)))
    model = keras.Sequential([keras.Input((5,)), reads, layers.Dense(3)])
    inner, metrics = keras.optimizers.SGD(0.0), [WritesElsewhere(place)]
    cases.assert_fit_refuses(model, make_plan(), data, "metric", inner, metrics=metrics)


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
@pytest.mark.attack(
    "The training loss in the update of the weights",
    tried="A learning rate, a constraint, a regularizer or an inner optimizer reads the "
    "exact training loss from its metric, within the step.",
    area="inputs",
    invariants=[16],
)
@pytest.mark.parametrize("kind", ["schedule", "constraint", "regularizer", "inner"])
@pytest.mark.invariant(16)
def test_updates_read_no_metrics(kind, data, make_plan):
    model = plain()

    def loss():
        tracker = getattr(model, "_loss_tracker", None)  # once it is compiled
        return 0.0 if tracker is None else tf.convert_to_tensor(tracker.total)

    # Eagerly the private update is over when the constraint is called: only what the
    # constraint adds may not come.
    inner = keras.optimizers.SGD(0.0 if kind == "constraint" else 0.1)
    if kind == "schedule":
        inner = keras.optimizers.SGD(Schedule(loss))
    elif kind == "inner":
        inner = Subtracts(loss)
    else:
        setattr(model.layers[0].kernel, kind, Reads(loss))
    cases.assert_fit_refuses(model, make_plan(), data, "metric", inner)
