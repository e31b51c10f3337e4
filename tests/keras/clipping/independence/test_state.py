"""Tests that layers that store statistics of the data are refused, however nested."""

import clipping_reference as reference
import independence_cases as cases
import keras
import pytest
import tensorflow as tf
from small_models import data, make_plan, make_private_model

import tf_bandmf.keras
from tf_bandmf.keras.clipping.independence.layers import LAYERS
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError

pytestmark = pytest.mark.invariant(16)

ops = keras.ops


def nested(update, mean):
    return tf.function(lambda m: tf.function(update)(m) * 1.0)(mean)


def loop(update, mean):
    def body(i, m):
        return i + 1, update(m)

    return tf.while_loop(lambda i, m: i < 2, body, (0, mean))


PLACES = {
    "open": lambda update, mean: update(mean),
    "nested functions": nested,
    "branch": lambda update, mean: tf.cond(
        mean > 0, lambda: update(mean), lambda: mean
    ),
    "loop": loop,
    "map": lambda update, mean: tf.map_fn(update, tf.stack([mean, mean])),
}


class Average(keras.layers.Layer):
    """A layer that assigns a moving average of the data, for example inside a loop."""

    def __init__(self, place):
        super().__init__()
        self.place = place

    def build(self, shape):
        self.average = self.add_weight(shape=(), trainable=False)

    def call(self, x):
        def update(mean):
            self.average._value.assign(0.9 * self.average._value + 0.1 * mean)
            return mean

        PLACES[self.place](update, ops.mean(x))
        return x


class Tracks(keras.layers.Layer):
    """A layer that reads a metric in `call`, after updating it if `update` is true."""

    def __init__(self, update):
        super().__init__()
        self.tracker = keras.metrics.Mean()
        self.update = update

    def call(self, x):
        if self.update:
            self.tracker.update_state(x)
        return x + self.tracker.total / (1.0 + self.tracker.count)


KEEPING = {name: lambda name=name: Average(name) for name in PLACES}
KEEPING |= {
    "metric": lambda: Tracks(True),
    "metric that is read": lambda: Tracks(False),
}


@pytest.mark.parametrize("name", KEEPING)
def test_state_assigned_at_any_depth_is_refused(name):
    with pytest.raises(UnsupportedModelError, match="without noise"):
        cases.largest_change(cases.model_with(KEEPING[name]()))


def test_a_vouched_class_is_named_in_the_statement(monkeypatch):
    @tf_bandmf.keras.extending.register_per_example_layer
    class Vouched(keras.layers.Layer):
        def call(self, x):
            return x * tf.ensure_shape(tf.ones(tf.shape(x)), x.shape)

    x, y = data
    plan = make_plan()
    dense = keras.layers.Dense
    layers = [keras.Input((5,)), dense(4), Vouched(), dense(3)]
    model = make_private_model(plan, model=layers)
    assert "Vouched" in str(model.privacy_statement())
    assert "Vouched" not in str(plan.statement())
    model.fit(plan.batches(x, y), epochs=2, verbose=0)
    assert cases.executed_alone(model, x, y) == ()
    monkeypatch.delitem(LAYERS, Vouched)
    assert "Vouched" not in str(model.privacy_statement())


def test_only_layers_can_be_vouched_for():
    for wrong in (keras.Sequential, int, keras.layers.Dense(2)):
        with pytest.raises(TypeError, match="layer_class"):
            tf_bandmf.keras.extending.register_per_example_layer(wrong)


def test_layers_that_read_compiled_metrics_are_refused():
    # Once the metric is built, its variables would hold exact statistics of the data.
    metric = keras.metrics.SparseCategoricalAccuracy()
    reads = cases.Custom(lambda x: x * (1.0 + metric.variables[0]))
    model = keras.Sequential([keras.Input((5,)), reads, keras.layers.Dense(3)])
    plan = make_plan()
    reference.assert_fit_refuses(model, plan, data, "without noise", metrics=[metric])
