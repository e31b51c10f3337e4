"""Recurrent layers, whose rule runs Keras' loop over its own steps."""

import clipping_reference as reference
import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf.keras.clipping import self_check
from tf_bandmf.keras.clipping.rules import rule_for
from tf_bandmf.keras.clipping.rules.per_example import PerExampleRule
from tf_bandmf.keras.clipping.rules.recurrent import RecurrentRule

layers = keras.layers

# Several layers side by side in one model: tracing a loop takes seconds.
GROUPS = {
    "lstm": [
        lambda: layers.LSTM(3),
        lambda: layers.LSTM(
            2, return_sequences=True, go_backwards=True, use_bias=False
        ),
        lambda: layers.LSTM(2, unroll=True, zero_output_for_mask=True),
    ],
    "gru": [
        lambda: layers.GRU(3),
        lambda: layers.GRU(2, reset_after=False, return_sequences=True),
        lambda: layers.GRU(2, reset_after=False, use_bias=False, go_backwards=True),
        lambda: layers.GRU(2, use_bias=False, recurrent_activation="hard_sigmoid"),
    ],
    "simple": [
        lambda: layers.SimpleRNN(3, activation="relu"),
        lambda: layers.Bidirectional(layers.SimpleRNN(2)),
        lambda: layers.Bidirectional(layers.SimpleRNN(2, return_sequences=True)),
    ],
}


def model_of(makers, first=lambda tokens: tokens, others=()):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((7,), dtype="int32")
    embedded = layers.Embedding(5, 3, mask_zero=True)(first(inputs))
    actual = []
    for make in makers:
        output = make()(embedded)
        if len(output.shape) == 3:
            output = layers.Flatten()(output)
        actual.append(output)
    joined = layers.Concatenate()(actual) if len(actual) > 1 else actual[0]
    model = keras.Model(
        [inputs, *others] if others else inputs, layers.Dense(3)(joined)
    )
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    reference.randomize(model)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_gradients_equal_those_of_examples_one_by_one(group):
    model = model_of(GROUPS[group])
    recurrent = [m for m in model._flatten_layers() if isinstance(m, layers.RNN)]
    for layer in recurrent:
        assert isinstance(rule_for(layer, layer.trainable_variables), RecurrentRule)
    x = reference.tokens()
    assert (x == 0).any() and not (x == 0).all(1).any()
    reference.assert_exact(model, x, reference.labels())


@pytest.mark.slow
def test_states_that_are_given_and_returned():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6, 4))
    start = layers.Dense(3)(inputs[:, 0])
    output, state, carry = layers.LSTM(3, return_state=True, return_sequences=True)(
        inputs, initial_state=[start, keras.ops.tanh(start)]
    )
    decoded = layers.GRU(3)(output, initial_state=state)
    joined = layers.Concatenate()([decoded, carry])
    model = keras.Model(inputs, layers.Dense(3)(joined))
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    reference.assert_exact(model, reference.sequences(), reference.labels())


@pytest.mark.slow
def test_a_frozen_kernel_in_a_recurrent_layer():
    layer = layers.LSTM(3)
    model = reference.classifier(layer, inputs=(6, 4))
    layer.cell.recurrent_kernel.trainable = False
    assert len(model.trainable_variables) == 4
    reference.assert_exact(model, reference.sequences(), reference.labels())


class Numbered(layers.Layer):
    """Passes tokens on, and keeps the numbers of their examples for masks to be read."""

    def call(self, tokens, numbers):
        self.numbers = numbers
        return tokens


def give_masks(cell, numbered):
    """Masks of a cell that are numbers of the example, not drawn."""

    def masks(step_input, rate):
        gates = getattr(cell, "dropout_mask_count", None)
        rng = np.random.default_rng(int(100 * rate))
        shape = (5, gates or 1, step_input.shape[-1])
        table = (rng.random(shape) >= rate).astype("f4") / (1 - rate)
        rows = tf.gather(tf.constant(table), numbered.numbers[:, 0])
        actual = tf.unstack(rows, axis=1)
        return actual if gates else actual[0]

    cell._create_dropout_mask = masks


DROPPING = {
    "lstm": [lambda: layers.LSTM(3, dropout=0.3, recurrent_dropout=0.4)],
    "lstms": [
        lambda: layers.LSTM(3, dropout=0.3),
        lambda: layers.Bidirectional(layers.LSTM(2, recurrent_dropout=0.4)),
    ],
    "gru": [
        lambda: layers.GRU(3, dropout=0.3, recurrent_dropout=0.4),
        lambda: layers.GRU(
            2, recurrent_dropout=0.4, reset_after=False, go_backwards=True
        ),
        lambda: layers.GRU(2, dropout=0.3, reset_after=False, return_sequences=True),
    ],
    "simple": [
        lambda: layers.SimpleRNN(3, dropout=0.3, recurrent_dropout=0.4, unroll=True)
    ],
}


@pytest.mark.parametrize("group", DROPPING)
@pytest.mark.slow_cases("lstm", "lstms", "gru")
def test_dropout_of_cells_has_the_gradients_of_examples_one_by_one(group):
    numbers, numbered = keras.Input((1,), dtype="int32"), Numbered()
    model = model_of(
        DROPPING[group], lambda tokens: numbered(tokens, numbers), [numbers]
    )
    for layer in model._flatten_layers():
        if isinstance(layer, layers.RNN):
            assert isinstance(rule_for(layer, layer.trainable_variables), RecurrentRule)
            give_masks(layer.cell, numbered)
    x = [reference.tokens(), np.arange(5)[:, None].astype("i4")]
    reference.assert_exact(model, x, reference.labels())


def test_others_are_left_to_the_generic_rule():
    layer = layers.RNN(layers.LSTMCell(3))
    layer.build((None, 6, 4))
    assert isinstance(rule_for(layer, layer.trainable_variables), PerExampleRule)


@pytest.mark.slow
def test_outputs_are_those_of_keras():
    """Also what does not reach the loss, and the ordinary call afterwards."""
    makers = [lambda: layers.SimpleRNN(3)]
    makers.append(lambda: layers.SimpleRNN(2, return_sequences=True))
    model = model_of(makers)
    x, y = reference.tokens(), reference.labels()
    before = np.asarray(model(x, training=True))
    result = reference.traced(model, x, y)
    np.testing.assert_allclose(result.outputs, before, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(np.asarray(model(x, training=True)), before)
    assert "inner_loop" not in vars(model.layers[2])


@pytest.mark.slow
@pytest.mark.parametrize(
    "cells",
    [
        lambda: [keras.layers.GRUCell(3), keras.layers.LSTMCell(2)],
        lambda: [keras.layers.LSTMCell(3), keras.layers.LSTMCell(2)],
    ],
    ids=["gru-lstm", "lstm-lstm"],
)
def test_cells_one_after_the_other_have_the_gradients_of_single_examples(cells):
    inputs = keras.Input((4, 2))
    outputs = keras.layers.Dense(1)(keras.layers.RNN(cells())(inputs))
    model = keras.Model(inputs, outputs)
    model.compile(loss="mse")
    x = np.random.default_rng(0).normal(size=(3, 4, 2)).astype("f4")
    self_check(model, x, np.ones((3, 1), "f4"))
