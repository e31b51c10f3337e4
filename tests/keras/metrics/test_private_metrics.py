"""Tests that private metrics bound the contribution of each record, valid or not."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import Custom, centred

from tf_bandmf.keras import PrivateAccuracy, PrivateAUC, PrivateLoss, make_private
from tf_bandmf.keras.extending import PrivateMean, PrivateMetric, UnsupportedModelError
from tf_bandmf.keras.metrics.metric_sums import sums_of

layers = keras.layers
RECORDS, FEATURES = 40, 6


@pytest.fixture(scope="module")
def records():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(RECORDS, FEATURES)).astype(np.float32)
    return x, rng.integers(0, 2, RECORDS).astype(np.int32)


def compiled(*middle, last=1, loss="binary_crossentropy"):
    keras.utils.set_random_seed(0)
    activation = "sigmoid" if last == 1 else "softmax"
    model = keras.Sequential(
        [layers.Input((FEATURES,)), *middle, layers.Dense(last, activation=activation)]
    )
    model.compile("sgd", loss)
    return make_private(model)


class Counting(layers.Layer):
    def build(self, shape):
        self.total = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, t):
        self.total.assign_add(keras.ops.sum(t))
        return t + self.total


class Greedy(PrivateMetric):
    """A metric that computes each record's vector from all records of the batch."""

    name = "greedy"

    def vectors(self, rows):
        return tf.fill(tf.shape(rows.y_pred), 50.0 * tf.reduce_max(rows.y_pred))

    def result(self, sums, count, noise):
        return float(sums[0]), noise


def overridden():
    """Returns a built-in metric with one method overridden to mix records."""
    metric = PrivateAccuracy(name="own")
    metric.values = lambda rows: rows.y_pred[:, 0] - tf.reduce_mean(rows.y_pred)
    return metric


class Patient(Greedy):
    """A metric that computes each record's vector from that record only."""

    def vectors(self, rows):
        return 50.0 * rows.y_pred


ALL = [PrivateAccuracy(), PrivateLoss(1.4), PrivateAUC(bins=4)]


@pytest.mark.invariant(3)
@pytest.mark.slow_cases(but=["mixing"])
@pytest.mark.parametrize(
    ("middle", "metrics"),
    [
        ([layers.Dense(4, activation="relu"), layers.Dropout(0.5)], ALL),
        ([Custom(centred)], ALL),
        ([], [Greedy()]),
        ([], [overridden()]),
        ([], [Patient()]),
        ([], [PrivateMean(lambda y, p: 7.0 * p[0], "big"), PrivateAccuracy()]),
    ],
    ids=["plain", "layer", "mixing", "overridden", "own", "function"],
)
def test_a_neighbor_moves_the_sums_by_one_at_most(records, middle, metrics):
    """Asserts that each record adds a vector of norm at most 1.

    No other record of the batch affects this vector.
    """
    x, y = (part[:12] for part in records)
    x, y = x.copy(), y.copy()
    x[0], x[1], y[2] = np.nan, 3e38, 7
    model = compiled(*middle)
    whole, count, _ = sums_of(model, x, y, metrics)
    assert count == 12 and np.all(np.isfinite(whole))
    for record in (0, 2):
        # `alone` is what the record adds to the sums.
        alone = sums_of(model, x[[record]], y[[record]], metrics)[0]
        assert np.linalg.norm(alone) <= 1.0
        other_x, other_y = x.copy(), y.copy()
        other_x[record], other_y[record] = x[11], y[11]
        moved = sums_of(model, other_x, other_y, metrics)[0] - whole
        other = sums_of(model, x[[11]], y[[11]], metrics)[0]
        # The sums differ by rounding errors, which depend on the batch size.
        np.testing.assert_allclose(moved, other - alone, atol=1e-6)


class Unbounded(Greedy):
    bad = 1e300

    def vectors(self, rows):
        return rows.y_pred / 0.0


@pytest.mark.invariant(3)
def test_what_a_bad_record_adds_is_bounded(records):
    x, y = records
    metric, model = Unbounded(), compiled()
    assert np.linalg.norm(sums_of(model, x[:1], y[:1], [metric])[0]) <= 1.0
    for bad in (np.nan, np.inf, -np.inf):
        metric.bad = bad
        with pytest.raises(ValueError, match="must be a finite number, found"):
            sums_of(model, x, y, [metric])


def test_batches_do_not_matter(records):
    model = compiled()
    sums = [sums_of(model, *records, ALL, batch_size=size)[0] for size in (11, 40)]
    data = tf.data.Dataset.from_tensor_slices(records).batch(11)
    # The sums differ by rounding errors, which depend on the batch size.
    np.testing.assert_allclose(sums[0], sums[1], atol=1e-5)
    np.testing.assert_array_equal(sums[0], sums_of(model, data, None, ALL)[0])


def test_without_noise_they_are_the_metrics_of_keras(records):
    x, y = records
    model = compiled(layers.Dense(4, activation="tanh"))
    model.compile("sgd", "binary_crossentropy", metrics=["accuracy", "AUC"])
    loss, accuracy, _ = model.evaluate(x, y, verbose=0)
    values = {}
    for metric in (PrivateAccuracy(), PrivateLoss(9.0), PrivateAUC(400)):
        sums, count, _ = sums_of(model, x, y, [metric])
        values[metric.name], noise = metric.result(sums, count, 0.0)
        assert noise == 0.0
    scores = model.predict(x, verbose=0)[:, 0]
    pairs = scores[y == 1][:, None] - scores[y == 0]
    assert values["accuracy"] == pytest.approx(accuracy, abs=1e-6)
    assert values["loss"] == pytest.approx(loss, rel=1e-5)
    assert values["auc"] == pytest.approx(np.mean(pairs > 0), abs=0.02)
    # This model has three classes, and its targets are integers or one-hot vectors.
    classes = compiled(last=3, loss="categorical_crossentropy")
    predicted = classes.predict(x, verbose=0).argmax(1)
    one_hot = np.eye(3, dtype=np.float32)[y]
    for targets in (y, one_hot):
        sums, count, _ = sums_of(classes, x, targets, [PrivateAccuracy()])
        actual, _ = PrivateAccuracy().result(sums, count, 0.0)
        assert actual == pytest.approx(np.mean(predicted == y), abs=1e-6)


@pytest.mark.parametrize("metric", [PrivateAccuracy(), PrivateLoss(2.0), PrivateAUC(8)])
def test_the_stated_noise_is_that_of_the_metric(metric):
    """Asserts that the stated noise is within 10% of 2000 draws' standard deviation.

    The tolerance of 10% is six standard errors.
    """
    rng = np.random.default_rng(1)
    sums = 0.4 * np.ones(1) * 1e4 if metric.size == 1 else 600 + 50.0 * np.arange(16)
    noise = 40.0
    noisy = sums + noise * rng.normal(size=(2000, metric.size))
    actual = np.array([metric.result(each, 20_000, noise) for each in noisy])
    assert np.std(actual[:, 0]) == pytest.approx(np.median(actual[:, 1]), rel=0.1)
    exact, _ = metric.result(sums, 20_000, 0.0)
    assert np.mean(actual[:, 0]) == pytest.approx(exact, abs=0.1 * np.std(actual[:, 0]))


def test_a_user_counts_as_one(records):
    x, y = records
    users = np.array([0] * 30 + [1] * 10)
    model = compiled()
    sums, count, _ = sums_of(model, x, y, ALL, users)
    mine, one, _ = sums_of(model, x[:30], y[:30], ALL, users[:30])
    assert (count, one) == (2, 1)
    assert np.linalg.norm(mine) <= 1.0
    other = sums_of(model, x[30:], y[30:], ALL, users[30:])[0]
    np.testing.assert_allclose(sums, mine + other, atol=1e-6)
    with pytest.raises(ValueError, match="one user for each"):
        sums_of(model, x, y, ALL, users[:5])


@pytest.mark.attack(
    "A private metric that raises an error for a record",
    tried="Uses a metric function that raises an error for some records: they count as "
    "bad, and the evaluation continues.",
    area="inputs",
)
@pytest.mark.invariant(18)
def test_a_record_of_which_a_metric_raises_is_bad(records):
    def of_two(y, p):
        pair = tf.concat([p, -p, tf.cast(y, p.dtype)[None]], 0)
        return tf.reduce_sum(tf.ensure_shape(tf.boolean_mask(pair, pair > 0), [2]))

    # Called directly, the function raises an error for some records.
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.function(of_two)(tf.constant(0.0), tf.constant([0.5]))
    x, y = (part[:6] for part in records)
    assert set(y) == {0, 1}
    model, metrics = compiled(), [PrivateMean(of_two, "of two")]
    total, count, _ = sums_of(model, x, y, metrics)
    each = [sums_of(model, x[[i]], y[[i]], metrics)[0] for i in range(6)]
    assert count == len(y)
    np.testing.assert_allclose(total, np.sum(each, axis=0), atol=1e-9)


def test_a_model_that_keeps_state_is_refused(records):
    with pytest.raises(UnsupportedModelError, match="changes a variable"):
        sums_of(compiled(Counting()), *records, ALL)
