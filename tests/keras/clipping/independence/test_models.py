"""Tests that layers that do not mix examples run batched, with exact gradients."""

import independence_cases as cases
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as L

from tf_bandmf.keras.clipping.sums.clipped_sums import clipped_gradient_sums

ops = keras.ops


def patches(x):
    """Splits the features into two patches, scales each, and joins them again."""
    shape = ops.shape(x)
    halves = ops.reshape(x, (shape[0], shape[1], 2, -1))
    halves = ops.transpose(halves, (0, 2, 1, 3))
    halves = halves * ops.reshape(ops.array([1.0, 2.0]), (1, 2, 1, 1))
    return ops.reshape(ops.transpose(halves, (0, 2, 1, 3)), shape)


def attention(x):
    scores = ops.softmax(ops.einsum("btd,bsd->bts", x, x) / 2.0)
    return ops.einsum("bts,bsd->btd", scores, x)


def rows_apart(x):
    """Merges the time axis into the batch axis, as `TimeDistributed` does."""
    rows = ops.reshape(x, (-1, cases.WIDTH))
    return ops.reshape(ops.softmax(rows), (-1, cases.LENGTH, cases.WIDTH))


def experts(x):
    """Computes a mixture of experts in which each example selects two experts."""
    value, index = ops.top_k(x[:, 0], 2)
    of_all = ops.stack([x * (1.0 + i) for i in range(cases.WIDTH)], axis=1)
    chosen = ops.take_along_axis(of_all, index[..., None, None], axis=1)
    return ops.sum(chosen * ops.softmax(value)[..., None, None], axis=1)


def own_rows(x):
    """Adds the time step with the largest first feature to all time steps."""
    best = tf.argmax(x[:, :, 0], axis=1)
    return x + tf.gather(x, best, batch_dims=1)[:, None]


def scan_over_time(x):
    steps = tf.transpose(x, [1, 0, 2])
    return tf.transpose(tf.scan(lambda a, t: tf.tanh(a + t), steps), [1, 0, 2])


def while_loop(x):
    def body(i, state):
        return i + 1, tf.tanh(state + x)

    return tf.while_loop(lambda i, _: i < 3, body, (0, tf.zeros_like(x)))[1]


class Cell(L.Layer):
    state_size = output_size = 4

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1] + 4, 4))

    def call(self, x, states):
        h = ops.tanh(ops.concatenate([x, states[0]], -1) @ self.w)
        return h, [h]


# Each model contains several layers, because tracing a model is slow. Functions that
# are not wrapped in a layer become nodes of a functional model.
HONEST = {
    "nodes": [attention, lambda x: x * ops.sigmoid(x) + 1.0],
    "layers": [
        *map(cases.Custom, (patches, attention, rows_apart, experts)),
        cases.Custom(lambda x: x * ops.stop_gradient(ops.sigmoid(x))),
        cases.Custom(
            lambda x: x + ops.conv(x, ops.ones((2, 4, 4)) / 8, padding="same")
        ),
        L.RNN(Cell(), return_sequences=True),
    ],
    # The analysis covers only Keras operations, so layers that call TensorFlow run on
    # one example at a time.
    "TensorFlow": [cases.Custom(f) for f in (own_rows, scan_over_time, while_loop)],
}


@pytest.mark.slow_cases("layers", "TensorFlow")
@pytest.mark.parametrize("name", HONEST)
@pytest.mark.invariant(16)
def test_honest_layers_are_exact(name):
    model = cases.model_with(*HONEST[name])
    cases.reference.assert_exact(model, *cases.examples())
    closed = HONEST[name] if name == "TensorFlow" else []
    assert set(cases.executed_alone(model)) == set(closed)


def each(function):
    """Returns a function that evaluates `function` on the first entry of x only."""
    return lambda x: function(x[0])[None] + tf.zeros_like(x)


def until(x):
    return tf.while_loop(
        lambda v: tf.reduce_max(tf.abs(v)) > 1e-3,
        lambda v: [v * 0.5],
        [x],
        maximum_iterations=12,
    )[0]


def in_bounds(x):
    step = tf.where(x[0, :1] > 0.5, tf.cast(x[0, :1] * 1e3, tf.int32), 0)
    places = tf.math.floormod(step, cases.LENGTH)
    clipped = tf.clip_by_value(step, 0, cases.LENGTH - 1)
    largest = tf.gather(x, tf.argmax(x, 0))
    return x + tf.gather_nd(x, places[:, None]) + tf.gather(x, clipped) + largest[0]


@tf.custom_gradient
def straight_through(x):
    return tf.round(x), lambda upstream: tf.where(tf.abs(x) < 1, upstream, 0.0)


ENDING = [straight_through, each(in_bounds), each(until)]
ENDING += [lambda x: x + ops.take_along_axis(x, ops.argsort(x, 1), 1)]


@pytest.mark.slow_cases("0", "1", "2")
@pytest.mark.parametrize("place", range(len(ENDING)))
def test_what_ends_for_all_values_is_not_refused(place):
    x, y = cases.examples()
    x[1], x[2] = np.nan, np.inf
    sums = cases.clipping_of(cases.model_with(cases.Custom(ENDING[place])))(x, y)
    assert all(np.all(np.isfinite(s)) for s in sums)


BACKBONES = (
    "Bert DebertaV3 FNet T5 Bart GPT2 Bloom Llama Gemma Gemma3 Mixtral ViT ResNet"
)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*BACKBONES.split(), "Whisper"])
@pytest.mark.invariant(16)
def test_backbones_of_keras_hub(name):
    model = pytest.importorskip("hub_models").backbone(name)
    x = keras.tree.map_structure(
        lambda t: np.ones((4, *[n or 6 for n in t.shape[1:]]), t.dtype),
        model._inputs_struct,
    )
    alone = cases.executed_alone(model, x)
    norms = {"BatchNormalization"} if name == "ResNet" else set()
    assert {type(layer).__name__ for layer in alone} == norms


def test_a_model_is_judged_anew_where_training_has_changed_its_weights():
    # The analysis treats the bias of the convolution as a constant, so the analysis
    # must be repeated after the bias has changed.
    stack = [L.Conv2D(3, 3), cases.Custom(lambda x: 2.0 * x), L.Flatten(), L.Dense(2)]
    model = keras.Sequential([keras.Input((6, 6, 1)), *stack])
    for variable, size in ((0.0, 4), (1.0, 6)):
        model.layers[0].bias.assign([variable, 2.0, 3.0])
        x, y = tf.ones((size, 6, 6, 1)), tf.zeros((size,), tf.int32)
        model.compile(loss=cases.reference.FROM_LOGITS)
        for dtype in (tf.float32, tf.float64):
            sums = clipped_gradient_sums(model, tf.cast(x, dtype), y, l2_norm_clip=1.0)
            assert len(sums.norms) == size
