"""Tests that the numerical self-check finds errors that the model structure hides."""

import contextlib

import clipping_reference as reference
import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf.keras.clipping import rules
from tf_bandmf.keras.clipping.independence.layers import LAYERS
from tf_bandmf.keras.clipping.independence.registration import vouched
from tf_bandmf.keras.clipping.rules import dense
from tf_bandmf.keras.clipping.sums.self_check import self_check
from tf_bandmf.keras.clipping.tensors.errors import ClippingMismatchError
from tf_bandmf.keras.extending import Instantiated, Product, Rule

layers = keras.layers


@pytest.fixture
def wrong_dense_rule(monkeypatch):
    """Breaks the gradient rule of Dense layers by omitting the bias."""
    factors = dense.DenseRule.factors

    def without_bias(self, call, gradient):
        actual = dict(factors(self, call, gradient))
        actual.pop(id(call.layer.bias))
        return actual

    monkeypatch.setattr(dense.DenseRule, "factors", without_bias)


def test_accepts_random_layers_and_changes_nothing():
    model = reference.classifier(
        layers.GaussianNoise(0.3),
        layers.Dense(4, activation="relu"),
        layers.Dropout(0.5),
        layers.SpatialDropout1D(0.5),
        inputs=(6, 4),
    )
    before = [np.asarray(v) for v in model.variables]
    self_check(model, reference.sequences(), reference.labels())
    for old, new in zip(before, model.variables, strict=True):
        np.testing.assert_array_equal(old, new)


def test_accepts_bfloat16_sample_weights_and_batches_of_nothing():
    dense = layers.Dense(4, activation="relu", dtype="mixed_bfloat16")
    model = reference.functional((6, 4), dense)
    x, y = reference.sequences(), reference.labels()
    self_check(model, x, y, np.linspace(0.5, 1, 5, dtype="f4"))
    self_check(model, x[:0], y[:0])


@pytest.mark.parametrize(
    "stack",
    [
        lambda: [],
        lambda: [layers.LSTM(4, return_sequences=True), layers.Dropout(0.5)],
    ],
    ids=["alone", "beside a loop"],
)
def test_finds_a_wrong_rule(stack, wrong_dense_rule):
    model = reference.classifier(*stack(), layers.Dense(4), inputs=(6, 4))
    with pytest.raises(ClippingMismatchError, match="and one at a time"):
        self_check(model, reference.sequences(), reference.labels())


class Gained(layers.Layer):
    """A layer that computes (x @ kernel) * gain, with initial gains of 1."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 3))
        self.gain = self.add_weight(shape=(3,), initializer="ones")

    def call(self, x):
        return keras.ops.matmul(x, self.kernel) * self.gain


class RuleOfGained(Rule):
    """A gradient rule for `Gained`, correct only for gains of 1 unless `is_right`."""

    def __init__(self, is_right):
        self._is_right = is_right

    def supports(self, layer, variables):
        return type(layer) is Gained

    def factors(self, call, gradient):
        layer, x = call.layer, call.inputs
        projected = keras.ops.matmul(x, layer.kernel)
        received = gradient * layer.gain if self._is_right else gradient
        shape = tuple(layer.kernel.shape)
        return {
            id(layer.kernel): Product(x, received, shape),
            id(layer.gain): Instantiated(keras.ops.sum(projected * gradient, axis=1)),
        }


@pytest.mark.parametrize("is_right", [True, False])
def test_finds_a_rule_that_is_right_for_the_first_weights_alone(is_right, monkeypatch):
    monkeypatch.setattr(rules, "_RULES", [RuleOfGained(is_right), *rules._RULES])
    model = reference.classifier(Gained(), inputs=(6, 4))
    model.layers[0].gain.assign(np.ones(3))
    actual = pytest.raises(ClippingMismatchError, match="and one at a time")
    with contextlib.nullcontext() if is_right else actual:
        self_check(model, reference.sequences(), reference.labels())
    np.testing.assert_array_equal(model.layers[0].gain, np.ones(3))


def test_says_that_nothing_was_compared():
    model = reference.classifier(
        layers.Lambda(lambda x: x / 0.0), layers.Dense(4), inputs=(6, 4)
    )
    with pytest.warns(UserWarning, match="has a finite, nonzero gradient"):
        self_check(model, reference.sequences(), reference.labels())


class Gated(layers.Layer):
    """A layer that mixes examples through a gate, which is closed at first."""

    def __init__(self, gate, initial):
        super().__init__()
        self.gate, self.initial = gate, initial

    def build(self, shape):
        self.alpha = self.add_weight(
            shape=(), initializer=keras.initializers.Constant(self.initial)
        )

    def call(self, x):
        mean = keras.ops.mean(x, axis=0, keepdims=True)
        return x + self.gate(self.alpha) * mean


GATES = {
    "open": (tf.ones_like, 0.0),
    "zero": (lambda a: a, 0.0),
    "behind relu": (keras.ops.relu, -1.0),
    "behind relu, negated": (lambda a: keras.ops.relu(-a), 1.0),
    "stopped": (lambda a: tf.stop_gradient(tf.nn.relu(a)), -2.0),
    "finite": (
        lambda a: tf.where(tf.math.is_finite(1 / tf.nn.relu(a)), 1.0, 0.0),
        -1.0,
    ),
}


@pytest.mark.attack(
    "Gates that are closed during the check",
    tried="A layer that is registered as safe mixes examples behind a weight that is "
    "zero, negative before relu, or read only through isfinite or stop_gradient.",
    area="inputs",
)
@pytest.mark.invariant(16)
@pytest.mark.slow_cases("behind relu, negated", "stopped", "finite", "zero")
@pytest.mark.parametrize("name", GATES)
def test_finds_what_is_mixed_behind_a_gate(name, monkeypatch):
    monkeypatch.setitem(LAYERS, Gated, vouched)
    model = reference.classifier(Gated(*GATES[name]), inputs=(6, 4))
    before = [np.asarray(v) for v in model.variables]
    message = "mixes examples" if name == "open" else ""
    with pytest.raises(ClippingMismatchError, match=message):
        self_check(model, reference.sequences(), reference.labels())
    for old, new in zip(before, model.variables, strict=True):
        np.testing.assert_array_equal(old, new)
