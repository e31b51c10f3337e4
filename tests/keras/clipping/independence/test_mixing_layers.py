"""Layers that mix examples are executed for each example by itself, or refused."""

import independence_cases as cases
import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf.keras.clipping import UnsupportedModelError

ops = keras.ops
GENERATOR = keras.random.SeedGenerator(0)


def loop_over_batch(x):
    def body(i, total):
        return i + 1, total + x[i]

    return (
        x
        + tf.while_loop(
            lambda i, _: i < tf.shape(x)[0], body, (0, tf.zeros_like(x[0]))
        )[1]
    )


def attention_over_batch(x):
    scores = ops.softmax(ops.einsum("btd,ctd->bc", x, x))
    return ops.einsum("bc,ctd->btd", scores, x)


def partitioned(x):
    ids = tf.cast(x[:, 0, 0] > 0, tf.int32)
    return tf.concat(tf.dynamic_partition(x, ids, 2), axis=0)


@tf.custom_gradient
def mixed_backward(x):
    return tf.identity(x), lambda d: d + tf.reduce_sum(d, axis=0, keepdims=True)


def batch_norm(x):
    return (x - ops.mean(x, axis=0)) / ops.sqrt(ops.var(x, axis=0) + 1e-3)


def in_inner_function(x):
    return tf.function(lambda t: t - tf.reduce_mean(t, axis=0))(x)


ISOLATED = {
    "mean": lambda x: x - ops.mean(x, axis=0, keepdims=True),
    "attention": attention_over_batch,
    "mixup": lambda x: (x + keras.random.shuffle(x, seed=GENERATOR)) / 2,
    "loop": loop_over_batch,
    "condition": lambda x: tf.cond(tf.reduce_mean(x) > 0, lambda: x, lambda: 2 * x),
    "custom_gradient": mixed_backward,
    "batch_norm": batch_norm,
    "batch_size": lambda x: x / ops.cast(ops.shape(x)[0], "float32"),
    "inner_function": in_inner_function,
}


@pytest.mark.slow_cases(but=["mean"])
@pytest.mark.parametrize("name", ISOLATED)
@pytest.mark.invariant(16)
def test_mixing_layer_is_executed_alone(name):
    layer = cases.Custom(ISOLATED[name])
    model = cases.model_with(layer)
    assert cases.largest_change(model) <= 1 + 1e-3
    # Seen where the batch size is not a constant, so not by the trace asked here.
    if name != "batch_size":
        assert cases.executed_alone(model) == (layer,)


@pytest.mark.invariant(16)
def test_alone_gradients_are_those_of_single_examples():
    for name in ("batch_norm", "custom_gradient", "attention"):
        model = cases.model_with(cases.Weighted(ISOLATED[name]))
        cases.reference.assert_exact(model, *cases.examples())


class Chosen(cases.Weighted):
    """A layer in which an example decides which weights it meets."""

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
@pytest.mark.invariant(16)
def test_an_example_may_decide_what_runs_for_it(name):
    layer = Chosen(CHOICES[name])
    model = cases.model_with(layer)
    cases.reference.assert_exact(model, *cases.examples())
    assert cases.executed_alone(model) == (layer,)


@pytest.mark.invariant(16)
def test_last_layer_is_executed_alone():
    # The gradient that it gets from a loss with sparse labels is sparse.
    x, _ = cases.examples()
    model = keras.Sequential(
        [
            keras.Input(x.shape[1:]),
            keras.layers.Flatten(),
            keras.layers.Dense(3),
            cases.Custom(lambda t: t - ops.max(t, axis=0) + ops.tanh(t)),
        ]
    )
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    cases.reference.assert_exact(model, x, np.arange(len(x), dtype=np.int32) % 3)


REFUSED = {
    "host_code": lambda x: tf.ensure_shape(
        tf.numpy_function(lambda a: a - a.mean(0), [x], tf.float32), x.shape
    ),
    "shuffle_without_seed": lambda x: x + tf.random.shuffle(x),
    "shuffle_in_a_loop": lambda x: (
        x + tf.map_fn(lambda e: tf.random.shuffle(e), x - tf.reduce_mean(x, 0))
    ),
    "partition": partitioned,
}


@pytest.mark.slow_cases("shuffle_in_a_loop")
@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.invariant(16)
def test_mixing_layer_is_refused(name):
    model = cases.model_with(cases.Custom(REFUSED[name]))
    with pytest.raises(UnsupportedModelError):
        cases.largest_change(model)


NODES = {
    "mean": lambda x: x - ops.mean(x, axis=0, keepdims=True),
    "matmul": lambda x: (
        x + ops.mean(ops.matmul(x, ops.swapaxes(x, 1, 2)), axis=0)[:, :1]
    ),
}


@pytest.mark.parametrize("name", NODES)
@pytest.mark.invariant(16)
def test_mixing_node_of_a_functional_model_is_refused(name):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((cases.LENGTH, cases.WIDTH))
    x = NODES[name](keras.layers.Dense(cases.WIDTH)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Flatten()(x)))
    model.compile(loss="mse")
    with pytest.raises(UnsupportedModelError, match="mixes examples"):
        cases.largest_change(model)


class Gate(keras.layers.Layer):
    """Mixes examples as soon as a weight is not zero."""

    def __init__(self, cond):
        super().__init__()
        self.cond = cond

    def build(self, shape):
        self.gate = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x):
        return self.cond(self.gate > 0, lambda: x - ops.mean(x, axis=0), lambda: x)


@pytest.mark.parametrize("cond", [tf.cond, ops.cond], ids=["tensorflow", "keras"])
@pytest.mark.invariant(16)
def test_gate_that_opens_later_is_isolated(cond):
    gate = Gate(cond)
    model = cases.model_with(gate)
    assert cases.executed_alone(model) == (gate,)
    gate.gate.assign(1.0)
    assert cases.largest_change(model) <= 1 + 1e-3


class PythonGate(keras.layers.Layer):
    """Mixes examples after some calls."""

    def __init__(self, calls):
        super().__init__()
        self.calls = calls

    def call(self, x):
        self.calls -= 1
        return x - ops.mean(x, axis=0) if self.calls < 0 else x


@pytest.mark.parametrize("calls", range(1, 7))
@pytest.mark.invariant(16)
def test_gate_in_python_is_isolated_or_refused(calls):
    model = cases.model_with(PythonGate(calls))
    try:
        assert cases.largest_change(model) <= 1 + 1e-3
    except UnsupportedModelError as error:
        assert "earlier calls" in str(error)


class Keeps(keras.layers.Layer):
    """Keeps the whole batch for others to see."""

    def call(self, x):
        self.kept = [x]
        return x


class Reads(keras.layers.Layer):
    """Adds what another layer kept."""

    def __init__(self, source):
        super().__init__()
        self.source = lambda: source.kept[0]

    def call(self, x):
        return x + ops.mean(self.source(), axis=0)


@pytest.mark.invariant(16)
def test_a_batch_kept_by_another_layer_is_refused():
    keeps = Keeps()
    with pytest.raises(UnsupportedModelError, match=r"mixes examples|stay apart"):
        cases.largest_change(cases.model_with(keeps, Reads(keeps)))


@pytest.mark.invariant(16)
def test_a_batch_kept_for_the_loss_is_refused():
    keeps = Keeps()

    def loss(y, p):
        return ops.mean((y - p) ** 2) + ops.mean(p) * ops.mean(keeps.kept[0])

    with pytest.raises(UnsupportedModelError, match="whole batch"):
        cases.largest_change(cases.model_with(keeps, loss=loss))


CONFIGURATIONS = {
    "activation": lambda: keras.layers.Dense(
        4, activation=lambda x: x - ops.mean(x, axis=0)
    ),
    "attention_axes": lambda: SelfAttention(),
    "call": lambda: overridden(),
    "subclass": lambda: Subclass(),
}


class Subclass(keras.layers.Dropout):
    """A layer of the closed list, changed."""

    def __init__(self):
        super().__init__(0.1)

    def call(self, x, training=False):
        return x - ops.mean(x, axis=0)


class SelfAttention(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.inner = keras.layers.MultiHeadAttention(1, 2, attention_axes=(0,))

    def build(self, shape):
        self.inner.build(shape, shape)

    def call(self, x):
        return self.inner(x, x)


def overridden():
    layer = keras.layers.ReLU()
    layer.__dict__["call"] = lambda x: x - ops.mean(x, axis=0)
    return layer


@pytest.mark.slow_cases("call", "attention_axes", "activation")
@pytest.mark.parametrize("name", CONFIGURATIONS)
@pytest.mark.invariant(16)
def test_changed_layers_of_keras_are_not_trusted(name):
    model = cases.model_with(CONFIGURATIONS[name]())
    try:
        assert cases.largest_change(model) <= 1 + 1e-3
    except UnsupportedModelError:
        pass


class Around(keras.layers.Layer):
    """Has a weight of its own, and a layer inside that may mix examples."""

    def __init__(self, function):
        super().__init__()
        self.inner = cases.Custom(function)

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        return self.inner(x) * self.scale


@pytest.mark.parametrize("reduce_mean", [tf.reduce_mean, keras.ops.mean])
@pytest.mark.invariant(16)
def test_a_layer_runs_alone_with_what_is_inside(reduce_mean):
    layer = Around(lambda x: x + 3.0 * reduce_mean(x, axis=0, keepdims=True))
    model = cases.model_with(layer)
    assert cases.executed_alone(model) == (layer,)
    assert cases.largest_change(model) <= 1 + 1e-3
