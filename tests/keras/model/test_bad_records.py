"""One record changes the noisy sum by at most the clip norm, and cannot end a run."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from same_weights import flat
from small_plans import small_plan

import tf_bandmf
import tf_bandmf.keras

layers = keras.layers
BATCH = 8
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def trained(model, x, y, loss=CROSS_ENTROPY, **changes):
    """Returns the weights after one step on all records, with fixed test noise."""
    plan = small_plan("identity", len(y), len(y), 1, epsilon=1.0, test_seed=1)
    tf_bandmf.keras.make_private(model)
    optimizer = tf_bandmf.keras.PrivateOptimizer(keras.optimizers.SGD(1.0), plan)
    model.compile(optimizer, loss, **changes)
    model.fit(plan.batches(x, y), verbose=0)
    assert optimizer.steps_taken == 1
    return flat(model).astype("f8")


def classifier():
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((5,)), layers.Dense(4), layers.Dense(3)])


@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.slow_cases("True")
@pytest.mark.invariant(18)
def test_training_goes_on_after_any_feature(xla):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(BATCH, 5)).astype("f4")
    y = rng.integers(0, 3, BATCH)
    changes = {"jit_compile": xla}
    bad = (np.nan, np.inf, -np.inf, 3e38, 1e30, 1e-45)
    x[: len(bad), 2] = bad
    moved = trained(classifier(), x, y, **changes)
    assert np.all(np.isfinite(moved))
    x[:3] = np.nan
    base = trained(classifier(), x, y, **changes)
    np.testing.assert_array_equal(moved, base)
    # Replacing three records moves the sum by at most twice the clip norm for each.
    x[3:6] = 0.0
    base = trained(classifier(), x, y)
    assert np.linalg.norm(moved - base) * BATCH <= 6.0 + 6e-3


@pytest.mark.invariant(18)
def test_training_goes_on_after_a_label_that_is_no_class():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(BATCH, 5)).astype("f4")
    y = rng.integers(0, 3, BATCH)
    metrics = [
        "accuracy",
        keras.metrics.SparseCategoricalCrossentropy(from_logits=True),
    ]
    y[[2, 4, 5]] = 3, -1, 2**31 - 1
    moved = trained(classifier(), x, y, metrics=metrics)
    assert np.all(np.isfinite(moved))
    # Records without a loss contribute zero as well.
    x[[2, 4, 5]], y[[2, 4, 5]] = np.nan, 0
    zero = trained(classifier(), x, y)
    np.testing.assert_allclose(moved, zero, atol=1e-6)


def text_classifier(trainable):
    keras.utils.set_random_seed(0)
    embedding = layers.Embedding(10, 4, trainable=trainable)
    pooling = layers.GlobalAveragePooling1D()
    return keras.Sequential(
        [keras.Input((6,), dtype="int32"), embedding, pooling, layers.Dense(3)]
    )


@pytest.mark.parametrize("trainable", [True, False])
@pytest.mark.slow_cases("False")
@pytest.mark.invariant(18)
def test_training_goes_on_after_an_id_that_is_no_row(trainable):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 10, (BATCH, 6)).astype("i4")
    y = rng.integers(0, 3, BATCH)
    x[[1, 2, 4], [1, 0, 5]] = 10, 2**31 - 1, -11
    # Keras counts negative ids from the end.
    x[5, 2] = -1
    moved = trained(text_classifier(trainable), x, y)
    assert np.all(np.isfinite(moved))
    x[[1, 2, 4]] = 10
    x[5, 2] = 9
    same = trained(text_classifier(trainable), x, y)
    np.testing.assert_allclose(moved, same, atol=1e-6)
    x[[1, 2, 4]] = 0
    counted = trained(text_classifier(trainable), x, y)
    assert np.abs(counted - moved).max() > 1e-6


class OfTheHost(keras.metrics.Metric):
    """A metric in Python that raises for non-finite values."""

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
    """A metric of graph operations that raise for a label that is not a class."""

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
    "A metric that raises for a record",
    tried="A table of confusions gets a label that is not a class, and a metric in "
    "Python, as of scikit-learn, a prediction that is NaN: the metric is NaN, "
    "training goes on, and the weights are those without it.",
    area="inputs",
    invariants=[5, 18],
)
@pytest.mark.invariant(18)
@pytest.mark.parametrize("kind", METRICS)
def test_a_metric_that_raises_is_nan(kind, figure):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(BATCH, 5)).astype("f4")
    y = rng.integers(0, 3, BATCH)
    given = {"jit_compile": kind == "xla"}
    for value in (np.isfinite, np.isnan):
        model, metric = classifier(), METRICS[kind]()
        weights = trained(model, x, y, metrics=[metric], **given)
        assert value(model.history.history[metric.name][0])
        assert np.all(np.isfinite(weights))
        np.testing.assert_array_equal(weights, trained(classifier(), x, y, **given))
        x[2] = np.nan if kind == "host" else x[2]
        y[2] = y[2] if kind == "host" else 7
    figure("NaN")
