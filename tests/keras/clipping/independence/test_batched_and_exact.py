"""Layers, losses and models that keep examples apart run batched, with exact gradients."""

import independence_cases as cases
import keras
import numpy as np
import pytest
import tensorflow as tf

ops = keras.ops
layers = keras.layers
reference = cases.reference


def patches(x):
    """Splits features into patches and back."""
    shape = ops.shape(x)
    halves = ops.reshape(x, (shape[0], shape[1], 2, -1))
    halves = ops.transpose(halves, (0, 2, 1, 3))
    halves = halves * ops.reshape(ops.array([1.0, 2.0]), (1, 2, 1, 1))
    return ops.reshape(ops.transpose(halves, (0, 2, 1, 3)), shape)


def attention(x):
    scores = ops.softmax(ops.einsum("btd,bsd->bts", x, x) / 2.0)
    return ops.einsum("bts,bsd->btd", scores, x)


def own_rows(x):
    """Adds to each example its own most active step."""
    best = tf.argmax(x[:, :, 0], axis=1)
    return x + tf.gather(x, best, batch_dims=1)[:, None]


def recurrence(x):
    state, states = ops.zeros_like(x[:, 0]), []
    for step in range(x.shape[1]):
        state = ops.tanh(state + x[:, step])
        states.append(state)
    return ops.stack(states, axis=1)


def scan_over_time(x):
    steps = tf.transpose(x, [1, 0, 2])
    return tf.transpose(tf.scan(lambda a, t: tf.tanh(a + t), steps), [1, 0, 2])


def while_loop(x):
    def body(i, state):
        return i + 1, tf.tanh(state + x)

    return tf.while_loop(lambda i, _: i < 3, body, (0, tf.zeros_like(x)))[1]


def rows_apart(x):
    """Each step as a row of its own, as `TimeDistributed` does it."""
    rows = ops.reshape(x, (-1, cases.WIDTH))
    return ops.reshape(ops.softmax(rows), (-1, cases.LENGTH, cases.WIDTH))


def class_token(x):
    token = ops.broadcast_to(ops.ones((1, 1, cases.WIDTH)), (ops.shape(x)[0], 1, 4))
    return ops.concatenate([token, x], axis=1)[:, 1:]


HONEST = {
    "patches": patches,
    "attention": attention,
    "own_rows": own_rows,
    "recurrence": recurrence,
    "scan_over_time": scan_over_time,
    "while_loop": while_loop,
    "rows_apart": rows_apart,
    "class_token": class_token,
    "stop_gradient": lambda x: x * ops.stop_gradient(ops.sigmoid(x)),
    "convolution": lambda x: x + ops.conv(x, ops.ones((2, 4, 4)) / 8, padding="same"),
}


OF_TENSORFLOW = ("own_rows", "scan_over_time", "while_loop")


# Tracing a model costs more than what is in it: a few layers share one.
SHARED = [list(HONEST)[i : i + 4] for i in range(0, len(HONEST), 4)]


@pytest.mark.slow_cases(but=["stop_gradient-convolution"])
@pytest.mark.parametrize("names", SHARED, ids="-".join)
@pytest.mark.invariant(16)
def test_honest_layers_are_exact(names):
    model = cases.model_with(*(cases.Custom(HONEST[name]) for name in names))
    reference.assert_exact(model, *cases.examples())
    # What is not written with operations of Keras cannot be opened.
    customs = [layer for layer in model.layers if isinstance(layer, cases.Custom)]
    closed = [layer for layer, name in zip(customs, names) if name in OF_TENSORFLOW]
    assert set(cases.executed_alone(model)) == set(closed)


@pytest.mark.invariant(16)
def test_honest_glue_runs_batched():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((cases.LENGTH, cases.WIDTH))
    hidden = layers.Dense(cases.WIDTH)(inputs)
    x = ops.concatenate([hidden, attention(hidden)], axis=-1)
    x = ops.mean(x * ops.sigmoid(x) + 1.0, axis=1)
    model = keras.Model(inputs, layers.Dense(2)(x))
    model.compile(loss="mse")
    reference.assert_exact(model, *cases.examples())
    assert cases.executed_alone(model) == ()


def focal(y, p):
    p = ops.sigmoid(p)
    chance = y * p + (1 - y) * (1 - p)
    return -ops.mean((1 - chance) ** 2 * ops.log(chance), axis=-1)


def smoothed(y, p):
    y = 0.9 * ops.one_hot(ops.cast(y[:, 0] > 0, "int32"), 2) + 0.05
    return ops.categorical_crossentropy(y, p, from_logits=True)


LOSSES = {
    "focal": lambda y, p: focal(ops.cast(y > 0, "float32"), p),
    "smoothed": smoothed,
    "mean_of_all": lambda y, p: ops.mean((y - p) ** 2),
    "sum_of_all": lambda y, p: ops.sum(ops.abs(y - p)),
    "root": lambda y, p: ops.sqrt(ops.mean((y - p) ** 2) + 1e-3),
    "weighted": lambda y, p: ops.sum(ops.abs(y) * (y - p) ** 2) / ops.sum(ops.abs(y)),
    "huber": keras.losses.Huber(),
    "log_cosh": "log_cosh",
}


@pytest.mark.slow_cases(
    "sum_of_all", "root", "log_cosh", "focal", "mean_of_all", "huber", "smoothed"
)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.invariant(16)
def test_honest_loss(name):
    model = cases.model_with(loss=LOSSES[name])
    reference.assert_exact(model, *cases.examples())


@pytest.mark.invariant(16)
def test_per_token_loss_and_dict_inputs():
    keras.utils.set_random_seed(0)
    tokens = keras.Input((3,), dtype="int32", name="tokens")
    scale = keras.Input((1,), name="scale")
    x = layers.Embedding(5, 4)(tokens)
    x = x * ops.expand_dims(scale, 1)
    first, second = layers.Dense(5)(x), layers.Dense(2)(ops.mean(x, axis=1))
    model = keras.Model({"tokens": tokens, "scale": scale}, [first, second])

    def per_token(y, p):
        return ops.sparse_categorical_crossentropy(y, p, from_logits=True)

    model.compile(loss=[per_token, "mae"])
    rng = np.random.default_rng(0)
    x = {
        "tokens": rng.integers(0, 5, (4, 3)).astype("i4"),
        "scale": rng.normal(size=(4, 1)).astype("f4"),
    }
    y = [rng.integers(0, 5, (4, 3)).astype("i4"), rng.normal(size=(4, 2)).astype("f4")]
    reference.assert_exact(model, x, y)
    assert cases.executed_alone(model, x, y) == ()
