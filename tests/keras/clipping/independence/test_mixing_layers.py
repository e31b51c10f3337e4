"""Tests that layers and losses that mix examples run per example, or are refused."""

import independence_cases as cases
import keras
import numpy as np
import pytest
import tensorflow as tf
from clipping_reference import Around
from keras import layers as L
from small_models import centred

from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError

pytestmark = pytest.mark.invariant(16)

ops = keras.ops
GENERATOR = keras.random.SeedGenerator(0)


def attention_over_batch(x):
    scores = ops.softmax(ops.einsum("btd,ctd->bc", x, x))
    return ops.einsum("bc,ctd->btd", scores, x)


def host_code(x):
    return tf.ensure_shape(
        tf.numpy_function(lambda a: a - a.mean(0), [x], tf.float32), x.shape
    )


def partitioned(x):
    ids = tf.cast(x[:, 0, 0] > 0, tf.int32)
    return tf.concat(tf.dynamic_partition(x, ids, 2), axis=0)


@tf.custom_gradient
def mixed_backward(x):
    return tf.identity(x), lambda d: d + tf.reduce_sum(d, axis=0, keepdims=True)


def batch_norm(x):
    return (x - ops.mean(x, axis=0)) / ops.sqrt(ops.var(x, axis=0) + 1e-3)


class Centre(keras.Operation):
    """A custom operation that mixes examples."""

    def call(self, x):
        return centred(x)

    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape, x.dtype)


# This class has the name of a known Keras operation, but must count as unknown, because
# the table of known operations compares classes, not names.
Clip = type("Clip", (Centre,), {})


class Subclass(L.Dropout):
    """A subclass of a known layer whose `call` mixes examples."""

    def __init__(self):
        super().__init__(0.1)

    def call(self, x, training=False):
        return centred(x)


class ByContext(L.Layer):
    """A layer that mixes examples only if Keras' call context sets `training`."""

    def call(self, x, training=False):
        return centred(x) if training else x


class Queue(L.Layer):
    """A layer that keeps a moving average of past batches, like the queue in MoCo."""

    def build(self, shape):
        self.seen = self.add_weight(shape[1:], "zeros", trainable=False)

    def call(self, x):
        out = x - self.seen
        if not isinstance(x, keras.KerasTensor):
            self.seen.assign(0.9 * self.seen + 0.1 * ops.mean(x, axis=0))
        return out


def overridden():
    layer = L.ReLU()
    layer.__dict__["call"] = centred
    return layer


def hiding(inner):
    """Returns a layer that calls `inner` without storing it as an attribute."""
    return cases.Custom(lambda x: inner(x))


def by_product(x):
    return x + ops.mean(ops.matmul(x, ops.swapaxes(x, 1, 2)), axis=0)[:, :1]


def tf_centred(x):
    return x - tf.reduce_mean(x, axis=0)


def dilated(function):
    """Returns a function that cuts examples, transforms the pieces, and joins them."""

    def call(x):
        cut = tf.space_to_batch(x, [2], [[0, 1]])
        return x + tf.batch_to_space(function(cut), [2], [[0, 1]])

    return call


def cumulated(cut):
    rows = tf.reshape(cut, [-1, 2, 2, cases.WIDTH])
    return tf.reshape(tf.cumsum(rows, axis=1), tf.shape(cut))


def numbered(x):
    numbers = tf.range(cases.BATCH - 1, dtype=x.dtype)[: tf.shape(x)[0], None, None]
    cut = tf.space_to_batch(x, [1], [[0, 0]])
    return tf.batch_to_space(cut + numbers, [1], [[0, 0]])


# A layer that calls one of these functions runs on one example at a time.
ALONE = {
    "mean": centred,
    "attention": attention_over_batch,
    "mixup": lambda x: x + keras.random.shuffle(x, seed=GENERATOR),
    "condition": lambda x: tf.cond(tf.reduce_mean(x) > 0, lambda: x, lambda: 2 * x),
    "custom gradient": mixed_backward,
    "batch norm": batch_norm,
    "inner function": tf.function(tf_centred),
    "partition": partitioned,
}
# Each function makes a layer, or a node of a functional model, that is refused.
REFUSED = {
    "host code": lambda: cases.Custom(host_code),
    "shuffle without seed": lambda: cases.Custom(lambda x: x + tf.random.shuffle(x)),
    "shuffle in a loop": lambda: cases.Custom(
        lambda x: x + tf.map_fn(tf.random.shuffle, centred(x))
    ),
    "node": lambda: centred,
    "node of products": lambda: by_product,
    "memory": Queue,
}
EITHER = {
    # A dependence on the batch size is detected only if the size is not a constant.
    "batch size": lambda: cases.Custom(
        lambda x: x / ops.cast(ops.shape(x)[0], "float32")
    ),
    "branch on the batch size": lambda: cases.Custom(
        lambda x: x if x.shape[0] and x.shape[0] > 512 else centred(x)
    ),
    "mean of cut rows": lambda: cases.Custom(
        dilated(lambda cut: cut - tf.reduce_mean(cut, axis=0))
    ),
    "sums of cut rows": lambda: cases.Custom(dilated(cumulated)),
    "numbered cut rows": lambda: cases.Custom(numbered),
    "activation": lambda: L.Dense(4, activation=centred),
    "activation of a recurrent layer": lambda: L.LSTM(
        3, activation=lambda x: ops.tanh(centred(x))
    ),
    "attention axes": lambda: Around(
        L.MultiHeadAttention(1, 2, attention_axes=(0,)), lambda inner, x: inner(x, x)
    ),
    "call": overridden,
    "subclass": Subclass,
    "operation": lambda: cases.Custom(lambda x: Clip()(x)),
    "training by context": lambda: Around(ByContext()),
}
LAYERS = {
    **{name: lambda f=f: cases.Custom(f) for name, f in ALONE.items()},
    "hidden from Keras": lambda: hiding(cases.Custom(centred)),
    "Lambda": lambda: L.Lambda(centred),
    "a layer inside": lambda: Around(cases.Custom(centred)),
    "TensorFlow inside": lambda: Around(cases.Custom(tf_centred)),
    **REFUSED,
    **EITHER,
}
FAST = ["mean*", "hidden*", "subclass", "operation", "training*", "memory"]
FAST += ["node*", "*inside", "partition", "host*", "numbered*"]


@pytest.mark.slow_cases(but=FAST)
@pytest.mark.parametrize("name", LAYERS)
def test_layer_that_mixes_examples(name):
    layer = LAYERS[name]()
    try:
        model = cases.model_with(layer)
        assert cases.largest_change(model) <= 1 + 1e-3
    except (UnsupportedModelError, ValueError) as error:
        is_refused = isinstance(error, UnsupportedModelError)
        assert name in EITHER or (is_refused and name in REFUSED)
        return
    assert name not in REFUSED
    if name not in EITHER:
        assert cases.executed_alone(model) == (layer,)


def test_alone_gradients_are_those_of_single_examples():
    for function in (batch_norm, mixed_backward, attention_over_batch):
        model = cases.model_with(cases.Weighted(function))
        cases.reference.assert_exact(model, *cases.examples())


class Chosen(cases.Weighted):
    """A layer that applies its weight only to examples with a positive sum."""

    def call(self, x):
        return self.function(
            x,
            tf.reduce_sum(x) > 0,
            lambda: x * tf.convert_to_tensor(self.scale),
            lambda: tf.sin(x),
        )


CHOICES = {
    "cond": lambda x, way, yes, no: tf.cond(way, yes, no),
    "in a loop": lambda x, way, yes, no: tf.while_loop(
        lambda i, _: i < 2, lambda i, v: (i + 1, v + tf.cond(way, yes, no)), [0, x]
    )[1],
}


@pytest.mark.slow_cases("in a loop")
@pytest.mark.parametrize("name", CHOICES)
def test_an_example_may_decide_what_runs_for_it(name):
    layer = Chosen(CHOICES[name])
    model = cases.model_with(layer)
    cases.reference.assert_exact(model, *cases.examples())
    assert cases.executed_alone(model) == (layer,)


def test_last_layer_is_executed_alone():
    # With sparse labels, the gradient of the loss for the last layer's output is
    # sparse.
    last = cases.Custom(lambda t: t - ops.max(t, axis=0) + ops.tanh(t))
    model = cases.reference.functional(
        (cases.LENGTH, cases.WIDTH),
        lambda x: last(L.Dense(3)(L.Flatten()(x))),
        head=False,
    )
    x, _ = cases.examples()
    cases.reference.assert_exact(model, x, np.arange(len(x), dtype=np.int32) % 3)


class Gate(L.Layer):
    """A layer that mixes examples once its weight becomes positive."""

    def __init__(self, cond):
        super().__init__()
        self.cond = cond

    def build(self, shape):
        self.gate = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x):
        return self.cond(self.gate > 0, lambda: centred(x), lambda: x)


@pytest.mark.parametrize("cond", [tf.cond, ops.cond], ids=["tensorflow", "keras"])
def test_gate_that_opens_later_is_isolated(cond):
    gate = Gate(cond)
    model = cases.model_with(gate)
    assert cases.executed_alone(model) == (gate,)
    gate.gate.assign(1.0)
    assert cases.largest_change(model) <= 1 + 1e-3


class Keeps(L.Layer):
    """A layer that stores the whole batch in an attribute for other layers to read."""

    def call(self, x):
        self.kept = x
        return x


def test_a_batch_that_a_layer_keeps_is_not_read():
    keeps = Keeps()
    reads = cases.Custom(lambda x: x + ops.mean(keeps.kept, axis=0))
    with pytest.raises(UnsupportedModelError, match=r"mixes examples|stay apart"):
        cases.largest_change(cases.model_with(keeps, reads))

    def loss(y, p):
        return ops.mean((y - p) ** 2) + ops.mean(p) * ops.mean(keeps.kept)

    with pytest.raises(UnsupportedModelError, match="whole batch"):
        cases.largest_change(cases.model_with(keeps, loss=loss))


def of_host(y, p):
    factor = tf.numpy_function(lambda a: a.mean().astype("f4"), [p], tf.float32)
    return ops.mean((y - p) ** 2) * tf.ensure_shape(factor, ())


def test_loss_with_host_code_is_refused():
    with pytest.raises(UnsupportedModelError, match="code outside of the graph"):
        cases.largest_change(cases.model_with(loss=of_host))


def ratio(y, p):
    """Returns the mean squared error over all unmasked entries of the batch."""
    mask = ops.cast(ops.abs(y) > 0.1, "float32")
    return ops.sum(mask * (y - p) ** 2) / (1e-3 + ops.sum(mask))


LOSSES = {
    "ratio": ratio,
    "custom_gradient": lambda y, p: ops.mean((y - mixed_backward(p)) ** 2, axis=-1),
}


@pytest.mark.parametrize("name", LOSSES)
def test_loss_sees_one_example_alone(name):
    assert cases.largest_change(cases.model_with(loss=LOSSES[name])) <= 1 + 1e-3
