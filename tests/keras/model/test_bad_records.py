"""Tests that bad records move a sum by at most the clip norm and never stop a run."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from same_weights import assert_same, flat
from small_models import Custom, examples, make_private_model
from small_plans import small_plan

from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError

layers = keras.layers
BATCH, BAD = 8, 5


def trained(stack, x, y, weights=None, steps=1, rate=1.0, **changes):
    """Returns a model trained for a few steps on all records, with fixed noise."""
    sizes = BATCH, BATCH, steps
    plan = small_plan(f"bsr:{steps}", *sizes, epsilon=1.0, test_seed=1)
    inner = keras.optimizers.SGD(rate)
    model = make_private_model(plan, inner, model=stack, **changes)
    model.fit(plan.batches(x, y, weights), epochs=steps, verbose=0)
    assert model.optimizer.steps_taken == steps
    assert np.all(np.isfinite(flat(model)))
    return model


def classifier():
    return [keras.Input((5,)), layers.Dense(4), layers.Dense(3)]


@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.slow_cases("True")
@pytest.mark.invariant(18)
def test_training_goes_on_after_any_feature(xla):
    x, y = examples(BATCH)
    changes = {"jit_compile": xla}
    bad = (np.nan, np.inf, -np.inf, 3e38, 1e30, 1e-45)
    x[: len(bad), 2] = bad
    moved = trained(classifier(), x, y, **changes)
    x[:3] = np.nan
    assert_same(moved, trained(classifier(), x, y, **changes))
    # Replacing a record moves the sum by at most twice the clip norm. Here, three
    # records are replaced.
    x[3:6] = 0.0
    base = trained(classifier(), x, y)
    assert np.linalg.norm(flat(moved) - flat(base)) * BATCH <= 6.0 + 6e-3


@pytest.mark.invariant(18)
def test_training_goes_on_after_a_label_that_is_no_class():
    x, y = examples(BATCH)
    entropy = keras.metrics.SparseCategoricalCrossentropy(from_logits=True)
    y[[2, 4, 5]] = 3, -1, 2**31 - 1
    moved = trained(classifier(), x, y, metrics=["accuracy", entropy])
    # Records with NaN inputs also contribute zero, so training on them instead must
    # give the same weights.
    x[[2, 4, 5]], y[[2, 4, 5]] = np.nan, 0
    assert_same(moved, trained(classifier(), x, y), atol=1e-6)


def text_classifier(trainable):
    embedding = layers.Embedding(10, 4, trainable=trainable)
    pooling = layers.GlobalAveragePooling1D()
    return [keras.Input((6,), dtype="int32"), embedding, pooling, layers.Dense(3)]


@pytest.mark.parametrize("trainable", [True, False])
@pytest.mark.slow_cases("False")
@pytest.mark.invariant(18)
def test_training_goes_on_after_an_id_that_is_no_row(trainable):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 10, (BATCH, 6)).astype("i4")
    y = rng.integers(0, 3, BATCH)
    x[[1, 2, 4], [1, 0, 5]] = 10, 2**31 - 1, -11
    # Keras counts a negative id from the end of the table, so -1 means row 9.
    x[5, 2] = -1
    moved = trained(text_classifier(trainable), x, y)
    x[[1, 2, 4]] = 10
    x[5, 2] = 9
    assert_same(moved, trained(text_classifier(trainable), x, y), atol=1e-6)
    x[[1, 2, 4]] = 0
    counted = trained(text_classifier(trainable), x, y)
    assert np.abs(flat(counted) - flat(moved)).max() > 1e-6


class OfTheHost(keras.metrics.Metric):
    """A metric whose Python code raises an error for non-finite predictions."""

    def __init__(self):
        super().__init__(name="of_host")
        self.last = self.add_variable((), "zeros", name="last")

    @staticmethod
    def score(predicted):
        if not np.all(np.isfinite(predicted)):
            raise ValueError("Input contains NaN.")
        return np.float32(np.mean(predicted))

    def update_state(self, y_true, y_pred, sample_weight=None):
        actual = tf.numpy_function(self.score, [y_pred], tf.float32)
        self.last.assign(tf.ensure_shape(actual, []))

    def result(self):
        return self.last


class Confusions(keras.metrics.Metric):
    """A metric whose graph raises an error for a label that is not a class."""

    def __init__(self, name="table"):
        super().__init__(name=name)
        self.found = self.add_variable((3, 3), "zeros", name="found")

    def update_state(self, y_true, y_pred, sample_weight=None):
        best = tf.argmax(y_pred, -1)
        self.found.assign_add(
            tf.math.confusion_matrix(tf.reshape(y_true, [-1]), best, 3, dtype="float32")
        )

    def result(self):
        return tf.linalg.trace(self.found) / tf.reduce_sum(self.found)


METRICS = {"graph": Confusions, "xla": Confusions, "host": OfTheHost}


@pytest.mark.slow_cases("xla")
@pytest.mark.attack(
    "A metric that raises an error for a record",
    tried="A confusion matrix receives a label that is not a class, or a metric in "
    "Python (as in scikit-learn) receives a NaN prediction: the metric becomes NaN, "
    "training continues, and the weights are the same as without the metric.",
    area="inputs",
)
@pytest.mark.invariant(5, 18)
@pytest.mark.parametrize("kind", METRICS)
def test_a_metric_that_raises_is_nan(kind, figure):
    x, y = examples(BATCH)
    given = {"jit_compile": kind == "xla"}
    for value in (np.isfinite, np.isnan):
        metric = METRICS[kind]()
        model = trained(classifier(), x, y, metrics=[metric], **given)
        assert value(model.history.history[metric.name][0])
        assert_same(model, trained(classifier(), x, y, **given))
        x[2] = np.nan if kind == "host" else x[2]
        y[2] = y[2] if kind == "host" else 7
    figure("NaN")


def trained_with(function, x, y, weights=None):
    first = layers.Dense(5, kernel_initializer="identity")
    stack = [keras.Input((5,)), first, Custom(function), layers.Dense(3)]
    return trained(stack, x, y, weights, steps=2, rate=0.1, metrics=["accuracy"])


def between_0_and_1():
    x, y = examples(BATCH)
    return 1 / (1 + np.exp(-x)), y


def asserted(x):
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(x < 9), [x])]):
        return tf.identity(x)


def looked_up(x):
    place = tf.cast(x, tf.int32)
    return x + tf.raw_ops.GatherV2(params=tf.ones([5]), indices=place, axis=0)


@tf.custom_gradient
def asserted_backward(x):
    def gradient(upstream):
        small = tf.debugging.assert_less(tf.reduce_max(x), 9.0)
        with tf.control_dependencies([small]):
            return tf.identity(upstream)

    return tf.identity(x), gradient


def parsed(x):
    text = tf.where(x < 9.0, tf.strings.as_string(x), "no number")
    return tf.strings.to_number(text)


RAISING = {
    "an assertion": asserted,
    "a position": looked_up,
    "a gradient": asserted_backward,
    "a text": parsed,
    "not finite": lambda x: tf.debugging.check_numerics(x / tf.nn.relu(9.0 - x), "x"),
}


@pytest.mark.attack(
    "Records whose values would make a step fail",
    tried="Values of a record violate an assertion, an index range or a number format, "
    "in a layer or in a custom gradient: the record contributes zero, and the other "
    "records contribute the same as without it.",
    area="inputs",
)
@pytest.mark.slow_cases("a position", "a text", "not finite")
@pytest.mark.parametrize("name", RAISING)
@pytest.mark.invariant(5, 18)
def test_a_record_that_raises_adds_zero(name):
    x, y = between_0_and_1()
    weights = np.ones(BATCH, "f4")
    weights[BAD] = 0.0
    without = trained_with(RAISING[name], x, y, weights)
    x[BAD] = 10.0
    moved = trained_with(RAISING[name], x, y, np.ones(BATCH, "f4"))
    # Noisy sums are rounded to a grid, so sums that differ only by rounding errors can
    # end up one grid step apart.
    assert_same(moved, without, atol=1e-4)


@pytest.mark.invariant(18)
def test_records_that_all_raise_add_zero():
    x, y = between_0_and_1()
    none = trained_with(asserted, x, y, np.zeros(BATCH, "f4"))
    moved = trained_with(asserted, 10.0 + x, y, np.ones(BATCH, "f4"))
    assert_same(moved, none, atol=1e-6)


def broken(x):
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(x > 1e9), [x])]):
        return tf.identity(x)


@pytest.mark.attack(
    "A bug that raises an error for every example",
    tried="A layer has an assertion that fails for every input: the run is refused "
    "before it trains on noise alone and spends budget.",
    area="inputs",
)
@pytest.mark.invariant(6)
def test_what_raises_for_made_up_examples_is_the_programs_fault():
    with pytest.raises(UnsupportedModelError, match="raises an error for made-up"):
        trained_with(broken, *between_0_and_1())
