"""Preprocessors of models: functions of one example, which is shown."""

import collections

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_bandmf.keras

layers = keras.layers
BATCH = 4


class Model(keras.Model):
    """Takes numbers that its preprocessor makes of numbers."""

    def __init__(self, preprocessor):
        super().__init__()
        self.dense = layers.Dense(1)
        self.preprocessor = preprocessor

    def build(self, shape):
        self.dense.build((None, 2))

    def call(self, x):
        return self.dense(x)

    def preprocess_samples(self, x, y=None, sample_weight=None):
        return self.preprocessor(x), y


def compiled(preprocessor, x, **changes):
    """A private model, and the batches of its plan."""
    keras.utils.set_random_seed(0)
    plan = tf_bandmf.plan(
        "identity",
        epsilon=4.0,
        delta=1e-5,
        num_examples=len(x),
        batch_size=BATCH,
        epochs=1,
        test_seed=0,
    )
    model = Model(preprocessor)
    tf_bandmf.keras.make_private(model, self_check=False)
    optimizer = tf_bandmf.keras.PrivateOptimizer("sgd", plan, additional_run=True)
    model.compile(optimizer, "mse", **changes)
    return model, plan.batches(x, np.ones((len(x), 1), np.float32))


def fit(preprocessor, x, **changes):
    model, batches = compiled(preprocessor, x, **changes)
    model.fit(batches, verbose=0)
    return model


def impure(kind):
    place = tf.Variable(tf.zeros([2]))
    kept = []

    def state(x):
        place.assign_add(x[0])
        return x + place

    def host(x):
        kept.append(0)
        found = tf.py_function(lambda v: v + len(kept), [x], tf.float32)
        return tf.ensure_shape(found, [1, 2])

    def endless(x):
        return tf.while_loop(lambda v: tf.reduce_sum(v) < 9.0, lambda v: (v,), (x,))[0]

    def large(x):
        count = tf.cast(x[0, 0], tf.int32)
        return x + tf.reduce_sum(tf.zeros([count]))

    return {"state": state, "host": host, "endless": endless, "large": large}[kind]


@pytest.mark.attack(
    "Preprocessors of models that keep what they see",
    tried="A preprocessor adds up examples in a variable, runs Python code, goes on until "
    "a value of the record is large, or makes a tensor as large as a value says.",
    area="inputs",
    invariants=[16, 18],
)
@pytest.mark.parametrize("kind", ["state", "host", "endless", "large"])
@pytest.mark.invariant(16)
@pytest.mark.invariant(18)
def test_a_preprocessor_is_a_function_of_one_example(kind):
    x = np.ones((2 * BATCH, 2), np.float32)
    with pytest.raises(ValueError, match="no function of one example"):
        fit(impure(kind), x)


def drawn(x):
    return x + tf.random.normal(tf.shape(x))


class Drawn(layers.Layer):
    def __init__(self):
        super().__init__()
        self.generator = keras.random.SeedGenerator(1)

    def call(self, x):
        return x + keras.random.normal(keras.ops.shape(x), seed=self.generator)


@pytest.mark.parametrize(
    "preprocessor",
    [tf.tanh, drawn, Drawn, lambda x: x / tf.norm(x, axis=-1, keepdims=True)],
    ids=["tanh", "drawn", "keras", "norm"],
)
@pytest.mark.slow_cases("norm", "drawn", "tanh")
def test_pure_preprocessors_train(preprocessor):
    x = np.ones((2 * BATCH, 2), np.float32)
    found = preprocessor() if isinstance(preprocessor, type) else preprocessor
    assert fit(found, x).optimizer.steps_taken == 2


class Keeps(keras.metrics.Metric):
    def __init__(self, kept):
        super().__init__(name="keeps")
        self.kept = kept
        self.sum = self.add_weight(shape=(), initializer="zeros", name="sum")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.kept.append(float(y_pred.numpy().sum()))

    def result(self):
        return self.sum


@pytest.mark.invariant(16)
def test_a_preprocessor_is_traced_before_the_first_step():
    kept, traced = collections.deque(), []

    def preprocessor(x):
        traced.append(len(kept))
        return x

    x = np.ones((3 * BATCH, 2), np.float32)
    eager = {"metrics": [Keeps(kept)], "run_eagerly": True}
    model, batches = compiled(preprocessor, x, **eager)
    for batch in batches:
        model.train_on_batch(batch)
    assert len(kept) == 3 and traced == [0]
