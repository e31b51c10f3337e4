"""Tests that gradients are exact for models with several layers, inputs or losses."""

import clipping_reference as reference
import keras
import numpy as np
import pytest
import tensorflow as tf
from clipping_reference import classifier, functional, labels, tokens
from keras import layers as L

from tf_bandmf.keras.clipping.rules import rule_for
from tf_bandmf.keras.clipping.rules.per_example import PerExampleRule
from tf_bandmf.keras.clipping.rules.recurrent import RecurrentRule

ops = keras.ops
VECTOR, SEQUENCE = (4,), (6, 4)


def shared(x):
    dense, normalization, custom = L.Dense(4), L.LayerNormalization(), reference.Scale()
    for _ in range(3):
        x = custom(normalization(ops.tanh(dense(x))))
    return x


def siamese(x):
    wide = L.Dense(211, use_bias=False)
    return wide(L.Cropping1D((0, 1))(x)) - wide(L.Cropping1D((1, 0))(x))


def shared_by_ranks(x):
    dense = L.Dense(4, activation="relu")
    return dense(L.GlobalAveragePooling1D()(dense(x)))


def nested(x):
    inner = keras.Sequential([keras.Input((4,)), L.Dense(4, activation="tanh")])
    return inner(inner(x)) + x


class Twice(reference.Scale):
    """A layer that returns its output twice, and then its input."""

    def call(self, x):
        y = super().call(x)
        return y, y, x


def returned_twice(make):
    def body(x):
        first, second, third = make()(L.Dense(4)(x))
        return first * second + third

    return body


def states_given_and_returned(x):
    start = L.Dense(3)(x[:, 0])
    recurrent = L.LSTM(3, return_state=True, return_sequences=True)
    output, state, carry = recurrent(x, initial_state=[start, ops.tanh(start)])
    return L.Concatenate()([L.GRU(3)(output, initial_state=state), carry])


def cells(*makers):
    return lambda x: L.RNN([make() for make in makers])(x)


class Penalized(L.Layer):
    """A layer that returns a score, plus a penalty on the gradient of the score."""

    def __init__(self, penalty):
        super().__init__()
        self.penalty = penalty
        self.inner, self.outer = L.Dense(5, "tanh"), L.Dense(1)

    def build(self, shape):
        self.inner.build(shape)
        self.outer.build((None, 5))

    def call(self, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            score = self.outer(self.inner(x))
        slope = tape.gradient(score, x)
        length = ops.sqrt(ops.sum(slope**2, axis=-1, keepdims=True) + 1e-12)
        return score + self.penalty(length)


def any_image(x):
    x = L.Conv2D(70, 3, strides=2, padding="same")(x)
    x = L.GroupNormalization(groups=2)(L.Conv2D(70, 3, padding="valid")(x))
    return L.GlobalAveragePooling2D()(x)


BODIES = {
    "shared": (VECTOR, shared),
    "siamese": ((2, 203), siamese),
    "shared_by_ranks": (SEQUENCE, shared_by_ranks),
    "nested": (VECTOR, nested),
    "returned_twice": (SEQUENCE, returned_twice(Twice)),
    "state_returned": (SEQUENCE, returned_twice(lambda: L.LSTM(4, return_state=True))),
    "states_given_and_returned": (SEQUENCE, states_given_and_returned),
    "cells": (SEQUENCE, cells(lambda: L.GRUCell(3), lambda: L.LSTMCell(2))),
    "cells_of_a_kind": (SEQUENCE, cells(lambda: L.LSTMCell(3), lambda: L.LSTMCell(2))),
    "one_sided_penalty": (VECTOR, Penalized(lambda slope: ops.relu(slope - 0.1) ** 2)),
    "two_sided_penalty": (VECTOR, Penalized(lambda slope: (slope - 1) ** 2)),
    "images_of_any_size": ((None, None, 3), any_image),
}
FAST = ["siamese", "shared_by_ranks", "nested", "returned_twice", "*_penalty"]


@pytest.mark.slow_cases(but=FAST)
@pytest.mark.parametrize("name", BODIES)
@pytest.mark.invariant(17, 18)
def test_model(name):
    shape, body = BODIES[name]
    model = functional(shape, body)
    x = reference.normal(5, *(n or 8 for n in shape))
    reference.assert_exact(model, x, labels())


# The layers of each group share one model, because tracing a loop takes seconds.
RECURRENT = {
    "lstm": [
        lambda: L.LSTM(3),
        lambda: L.LSTM(2, return_sequences=True, go_backwards=True, use_bias=False),
        lambda: L.LSTM(2, unroll=True, zero_output_for_mask=True),
        lambda: L.LSTM(3, dropout=0.3, recurrent_dropout=0.4),
        lambda: L.Bidirectional(L.LSTM(2, recurrent_dropout=0.4)),
    ],
    "gru": [
        lambda: L.GRU(3, recurrent_activation="hard_sigmoid", use_bias=False),
        lambda: L.GRU(3, dropout=0.3, recurrent_dropout=0.4),
        lambda: L.GRU(2, reset_after=False, return_sequences=True),
        lambda: L.GRU(2, reset_after=False, use_bias=False, go_backwards=True),
        lambda: L.GRU(2, recurrent_dropout=0.4, reset_after=False, go_backwards=True),
        lambda: L.GRU(2, dropout=0.3, reset_after=False, return_sequences=True),
    ],
    "simple": [
        lambda: L.SimpleRNN(3, activation="relu"),
        lambda: L.Bidirectional(L.SimpleRNN(2, return_sequences=True)),
    ],
    "dropped": [
        lambda: L.SimpleRNN(3, dropout=0.3, recurrent_dropout=0.4, unroll=True)
    ],
}


def give_masks(cell):
    """Replaces a cell's random dropout masks by a function of the example."""

    def masks(step_input, rate):
        gates = getattr(cell, "dropout_mask_count", None)
        units = 2.0 * ops.arange(step_input.shape[-1], dtype="float32")
        waves = [ops.sin(50 * step_input + units + 3 * g) for g in range(gates or 1)]
        actual = [ops.cast(w > -0.4, "float32") / (1 - rate) for w in waves]
        return actual if gates else actual[0]

    cell._create_dropout_mask = masks


@pytest.mark.slow_cases("lstm", "gru", "simple")
@pytest.mark.parametrize("group", RECURRENT)
def test_recurrent_layers(group):
    def body(x):
        embedded = L.Embedding(5, 3, mask_zero=True)(x)
        outputs = [make()(embedded) for make in RECURRENT[group]]
        flat = [t if len(t.shape) == 2 else L.Flatten()(t) for t in outputs]
        return L.Concatenate()(flat) if len(flat) > 1 else flat[0]

    model = functional((7,), body, dtype="int32")
    for layer in model._flatten_layers():
        if isinstance(layer, L.RNN):
            assert isinstance(rule_for(layer, layer.trainable_variables), RecurrentRule)
            give_masks(layer.cell)
    x = tokens()
    assert (x == 0).any() and not (x == 0).all(1).any()
    before = np.asarray(model(x, training=True))
    result = reference.assert_exact(model, x, labels())
    assert reference.layers_alone(model, x) == ()
    # The outputs equal those of an ordinary call, and the step does not affect later
    # calls.
    np.testing.assert_allclose(result.outputs, before, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(np.asarray(model(x, training=True)), before)


def language_model(vocabulary=5, width=4, length=7, adapted=False, **arguments):
    embedding = L.ReversibleEmbedding(vocabulary, width, **arguments)
    dense = L.Dense(width, activation="tanh")
    heads = L.EinsumDense("abc,cde->abde", (None, 2, 3), bias_axes="de")
    joined = L.EinsumDense("abde,dec->abc", (None, width))

    def body(x):
        x = joined(ops.tanh(heads(dense(embedding(x)))))
        return embedding(x, reverse=True)

    model = functional((length,), body, dtype="int32", head=False)
    if adapted:
        for layer in (embedding, dense, heads, joined):
            layer.enable_lora(2)
        reference.randomize(model)
    return model


TIED = {
    "tied": {},
    "tied_large": {"vocabulary": 3000, "width": 16},
    "tied_masked_and_capped": {"mask_zero": True, "logit_soft_cap": 0.5},
    "untied": {"tie_weights": False},
    "adapted": {"adapted": True},
    "adapted_large": {"adapted": True, "vocabulary": 3000, "width": 16},
}


@pytest.mark.slow_cases(but=["tied"])
@pytest.mark.parametrize("name", TIED)
def test_tables_that_are_looked_up_and_projected_with(name):
    model, x = language_model(**TIED[name]), tokens()
    for layer in model.layers:
        if layer.trainable_variables:
            rule = rule_for(layer, layer.trainable_variables)
            is_adapted = isinstance(layer, L.Embedding) and layer.lora_enabled
            assert isinstance(rule, PerExampleRule) == is_adapted, layer.name
    reference.assert_exact(model, x, np.roll(x, -1, axis=1))


def transformer(length, mask_zero, attention):
    def body(x):
        x = L.Embedding(5, 8, mask_zero=mask_zero)(x)
        x = x + attention(x, x, use_causal_mask=mask_zero)
        x = L.Dense(8, activation="relu")(L.LayerNormalization()(x))
        x = L.EinsumDense("abc,cd->abd", (None, 300))(x)
        return L.GlobalAveragePooling1D()(x)

    return functional((length,), body, dtype="int32")


ATTENTION = {
    "multi_head": (7, lambda: transformer(7, True, L.MultiHeadAttention(2, 4))),
    "group_query": (7, lambda: transformer(7, False, L.GroupQueryAttention(4, 4, 2))),
    "any, short": (3, lambda: transformer(None, False, L.MultiHeadAttention(2, 4))),
    "any, long": (300, lambda: transformer(None, False, L.MultiHeadAttention(2, 4))),
}


@pytest.mark.slow_cases(but=["multi_head"])
@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name):
    length, make = ATTENTION[name]
    reference.assert_exact(make(), tokens(length=length), labels())


def test_masked_loss_divides_by_the_examples_own_steps():
    x = tokens()
    stack = [keras.Input((7,), dtype="int32"), L.Embedding(5, 3, mask_zero=True)]
    model = keras.Sequential([*stack, L.Dense(4, "tanh"), L.Dense(5, "softmax")])
    model.compile(loss="sparse_categorical_crossentropy")
    assert len({int(n) for n in (x > 0).sum(1)}) > 1
    reference.assert_exact(model, x, np.roll(x, -1, axis=1))


class Frozen(L.Layer):
    """A frozen layer whose inner layer is trainable and has an adapter."""

    def __init__(self):
        super().__init__()
        self.inner, self.other = L.Dense(4), L.Dense(4)

    def build(self, shape):
        self.inner.build(shape)
        self.other.build(shape)

    def call(self, x):
        return self.other(ops.tanh(self.inner(x)))

    def freeze(self):
        self.trainable = False
        self.inner.trainable = True
        self.inner.enable_lora(2)
        assert not self.trainable_variables


def adapt(layer):
    layer.enable_lora(2)


def freeze_kernel(layer):
    layer._kernel.trainable = False


def freeze_recurrent_kernel(layer):
    layer.cell.recurrent_kernel.trainable = False


def freeze(layer):
    layer.trainable = False


# A case consists of a function that makes a layer, a function that changes it, and the
# number of trainable weights after the change.
CHANGED = {
    "adapter": (lambda: L.Dense(6), adapt, 5),
    "adapter of a convolution": (lambda: L.Conv1D(3, 2), adapt, 5),
    "adapter of a table": (lambda: L.Embedding(5, 4), adapt, 4),
    "frozen kernel": (lambda: L.Dense(6), freeze_kernel, 3),
    "frozen recurrent kernel": (lambda: L.LSTM(3), freeze_recurrent_kernel, 4),
    "frozen normalization": (L.BatchNormalization, freeze, 2),
    "training within a frozen one": (Frozen, Frozen.freeze, 5),
}


@pytest.mark.slow_cases("adapter", "adapter of a*", "frozen recurrent kernel")
@pytest.mark.parametrize("name", CHANGED)
def test_adapters_and_what_is_frozen(name):
    make, change, count = CHANGED[name]
    layer, x = make(), reference.sequences()
    is_table = isinstance(layer, L.Embedding)
    x = tokens() if is_table else x
    model = classifier(layer, inputs=x.shape[1:], dtype="int32" if is_table else None)
    change(layer)
    assert len(model.trainable_variables) == count
    reference.randomize(model)
    before = [np.asarray(v) for v in model.non_trainable_variables]
    reference.assert_exact(model, x, labels())
    for old, new in zip(before, model.non_trainable_variables, strict=True):
        np.testing.assert_array_equal(old, new)


LOSSES = {
    "mean_of_all": lambda y, p: ops.mean((y - p) ** 2),
    "sum": keras.losses.MeanSquaredError(reduction="sum"),
    "weighted_mean": keras.losses.Huber(reduction="mean_with_sample_weight"),
    "weighted": lambda y, p: ops.sum(ops.abs(y) * (y - p) ** 2) / ops.sum(ops.abs(y)),
    "named": "log_cosh",
}


@pytest.mark.slow_cases(but=["sum", "weighted"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.invariant(16)
def test_losses(loss):
    model = functional(VECTOR, L.Dense(6, "tanh"), loss=LOSSES[loss])
    reference.assert_exact(
        model, reference.normal(6, 4), reference.normal(6, 3, seed=4)
    )


def test_connectionist_temporal_classification():
    # The targets of the second example repeat a label. Label 0 is both the blank and
    # the padding.
    y = np.array([[1, 2, 3], [2, 2, 1], [3, 0, 0], [1, 3, 0]])
    model = functional((6, 4), L.Dense(4), head=False, loss=keras.losses.CTC())
    reference.assert_exact(model, reference.normal(4, 6, 4), y)


WEIGHTS = np.array([0.0, 1.0, 2.0, 0.5, 0.0, 3.0], "f4")


@pytest.mark.slow_cases("column")
@pytest.mark.parametrize(
    "weights", [WEIGHTS, WEIGHTS[:, None]], ids=["vector", "column"]
)
def test_sample_weights(weights):
    model = functional(VECTOR, L.Dense(6, "tanh"))
    x, y = reference.normal(6, 4), labels(batch=6)
    result = reference.assert_exact(model, x, y, weights)
    assert result.norms[0] == 0.0 and result.losses[0] == 0.0
    # An example with weight zero has the same effect as an absent example.
    short = reference.traced(model, x[1:4], y[1:4], weights[1:4])
    padded = reference.traced(model, x[:4], y[:4], weights[:4])
    for a, b in zip(padded.sums, short.sums, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def two_in_two_out(of_one, **arguments):
    keras.utils.set_random_seed(2)
    first, second = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    dense = L.Dense(5, activation="tanh")
    joined = L.Concatenate()([dense(first), dense(second)])
    outputs = {"label": L.Dense(3, name="label")(joined)}
    outputs["value"] = L.Dense(1, name="value")(joined)
    model = keras.Model({"a": first, "b": second}, outputs)
    model.compile(loss={"label": reference.FROM_LOGITS, "value": of_one}, **arguments)
    return model


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.slow_cases("False")
def test_dict_inputs_and_outputs(weighted):
    changes = {"loss_weights": {"label": 0.5, "value": 2.0}} if weighted else {}
    model = two_in_two_out("mae", **changes)
    x = {"a": reference.normal(6, 4), "b": reference.normal(6, 4, seed=1)}
    y = {"label": labels(batch=6), "value": reference.normal(6, 1, seed=2)}
    weight = {"label": np.arange(6.0, dtype="f4"), "value": np.ones(6, "f4")}
    reference.assert_exact(model, x, y, weight if weighted else None)
    # Computing clipped sums does not update Keras' loss metrics of the outputs.
    before = [np.asarray(v) for m in model.metrics for v in m.variables]
    reference.traced(model, x, y)
    after = [np.asarray(v) for m in model.metrics for v in m.variables]
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.invariant(16)
def test_a_list_of_losses_one_of_each_token():
    keras.utils.set_random_seed(0)
    words = keras.Input((3,), dtype="int32", name="tokens")
    scale = keras.Input((1,), name="scale")
    x = L.Embedding(5, 4)(words) * ops.expand_dims(scale, 1)
    outputs = [L.Dense(5)(x), L.Dense(2)(ops.mean(x, axis=1))]
    model = keras.Model({"tokens": words, "scale": scale}, outputs)

    def per_token(y, p):
        return ops.sparse_categorical_crossentropy(y, p, from_logits=True)

    model.compile(loss=[per_token, "mae"], loss_weights=[1.0, 0.3])
    x = {"tokens": tokens(length=3), "scale": reference.normal(5, 1)}
    reference.assert_exact(model, x, [tokens(1, length=3), reference.normal(5, 2)])
    assert reference.layers_alone(model, x) == ()
