"""One record changes the noisy sum by at most the clip norm, and cannot end a run."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_plans import planned

import tf_bandmf
import tf_bandmf.keras

layers = keras.layers
FEATURES, BATCH = 256, 8


def trained(model, x, y, callbacks=(), loss="mse", **changes):
    """Weights after one step on all records, with the same test noise every time."""
    plan = planned(
        "identity",
        epsilon=1.0,
        delta=1e-5,
        num_examples=len(y),
        batch_size=len(y),
        epochs=1,
        test_seed=1,
    )
    tf_bandmf.keras.make_private(model)
    optimizer = tf_bandmf.keras.PrivateOptimizer(keras.optimizers.SGD(1.0), plan)
    model.compile(optimizer, loss, **changes)
    model.fit(plan.batches(x, y), verbose=0, callbacks=list(callbacks))
    assert optimizer.steps_taken == 1
    return np.concatenate([np.ravel(w) for w in model.get_weights()]).astype("f8")


GRAPH = pytest.param(False, id="graph")
XLA = pytest.param(True, id="xla", marks=pytest.mark.slow)


def classifier():
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((5,)), layers.Dense(4), layers.Dense(3)])


CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.mark.parametrize("xla", [GRAPH, XLA])
@pytest.mark.invariant(18)
def test_training_goes_on_after_any_feature(xla):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(BATCH, 5)).astype("f4")
    y = rng.integers(0, 3, BATCH)
    changes = {"loss": CROSS_ENTROPY, "jit_compile": xla}
    bad = (np.nan, np.inf, -np.inf, 3e38, 1e30, 1e-45)
    x[: len(bad), 2] = bad
    moved = trained(classifier(), x, y, **changes)
    assert np.all(np.isfinite(moved))
    x[:3] = np.nan
    base = trained(classifier(), x, y, **changes)
    np.testing.assert_array_equal(moved, base)
    # Three records are replaced: at most twice the clip norm for each.
    x[3:6] = 0.0
    base = trained(classifier(), x, y, loss=CROSS_ENTROPY)
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
    moved = trained(classifier(), x, y, loss=CROSS_ENTROPY, metrics=metrics)
    assert np.all(np.isfinite(moved))
    # Records without a loss contribute zero as well.
    x[[2, 4, 5]], y[[2, 4, 5]] = np.nan, 0
    zero = trained(classifier(), x, y, loss=CROSS_ENTROPY)
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
    # Keras takes negative ids from the end.
    x[5, 2] = -1
    moved = trained(text_classifier(trainable), x, y, loss=CROSS_ENTROPY)
    assert np.all(np.isfinite(moved))
    x[[1, 2, 4]] = 10
    x[5, 2] = 9
    same = trained(text_classifier(trainable), x, y, loss=CROSS_ENTROPY)
    np.testing.assert_allclose(moved, same, atol=1e-6)
    x[[1, 2, 4]] = 0
    counted = trained(text_classifier(trainable), x, y, loss=CROSS_ENTROPY)
    assert np.abs(counted - moved).max() > 1e-6


@pytest.mark.invariant(18)
def test_regularizers_and_metrics_take_a_bad_record():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(BATCH, 5)).astype("f4")
    x[1] = np.nan
    model = keras.Sequential(
        [
            keras.Input((5,)),
            layers.Dense(4, kernel_regularizer="l2"),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    metrics = ["accuracy", "auc", "mae", keras.metrics.Precision()]
    y = rng.integers(0, 2, (BATCH, 1)).astype("f4")
    weights = trained(model, x, y, loss="binary_crossentropy", metrics=metrics)
    assert np.all(np.isfinite(weights))


class OfTheHost(keras.metrics.Metric):
    """A metric of another library, which raises for what is not finite."""

    def __init__(self):
        super().__init__(name="of_host")
        self.last = self.add_variable((), "zeros", name="last")

    @staticmethod
    def score(y, predicted):
        if not np.all(np.isfinite(predicted)):
            raise ValueError("Input contains NaN.")
        return np.float32(np.mean((y - predicted) ** 2))

    def update_state(self, y_true, y_pred, sample_weight=None):
        actual = tf.numpy_function(self.score, [y_true, y_pred], tf.float32)
        self.last.assign(tf.ensure_shape(actual, []))

    def result(self):
        return self.last


@pytest.mark.attack(
    "A metric that raises for a record",
    tried="A metric in Python, as of scikit-learn, gets a prediction that is NaN.",
    area="inputs",
    invariants=[5, 18],
)
@pytest.mark.invariant(18)
def test_a_metric_that_raises_is_nan():
    x, y = np.ones((4, 3), "f4"), np.ones((4, 1), "f4")
    x[2] = np.nan
    model = keras.Sequential([keras.Input((3,)), layers.Dense(1)])
    trained(model, x, y, metrics=[OfTheHost()])
    assert np.isnan(model.history.history["of_host"][0])


class Confusions(keras.metrics.Metric):
    """A metric of graph operations that raise for a label that is no class."""

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


@pytest.mark.slow_cases("True")
@pytest.mark.attack(
    "A graph metric that raises for a record",
    tried="A table of confusions gets a label that is no class: the metric is NaN, "
    "training goes on, and the weights are those without it.",
    area="inputs",
    invariants=[18],
)
@pytest.mark.invariant(18)
@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_graph_metric_that_raises_is_nan(jit_compile, figure):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(BATCH, 5)).astype("f4")
    y = rng.integers(0, 3, BATCH)
    logs = {}

    class Keep(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs_of_epoch=None):
            logs.update(logs_of_epoch)

    given = {"loss": CROSS_ENTROPY, "callbacks": [Keep()], "jit_compile": jit_compile}
    whole = trained(classifier(), x, y, metrics=[Confusions()], **given)
    assert np.isfinite(logs["table"])
    np.testing.assert_array_equal(whole, trained(classifier(), x, y, **given))
    y[2] = 7
    bad = trained(classifier(), x, y, metrics=[Confusions()], **given)
    assert np.isnan(logs["table"]) and np.all(np.isfinite(bad))
    np.testing.assert_array_equal(bad, trained(classifier(), x, y, **given))
    figure("NaN")


def test_the_metric_raises_without_that():
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.function(Confusions().update_state)([7], [[0.0, 1.0, 2.0]])
