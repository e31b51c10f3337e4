"""What code of the user's puts into a backward pass is marked; nothing else is."""

import gc
import weakref

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf.keras.clipping import clipped_gradient_sums
from tf_bandmf.keras.compat import own_gradients


@tf.custom_gradient
def halved(x):
    return tf.identity(x), lambda upstream: upstream * tf.constant(0.5)


@tf.custom_gradient
def squared_again(x):
    def gradient(upstream):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.sin(x)
        return upstream * tape.gradient(y, x)

    return tf.sin(x), gradient


@tf.custom_gradient
def rows_of_table(x):
    def gradient(upstream):
        return tf.IndexedSlices(upstream[:1], [0], tf.shape(x, tf.int64))

    return tf.identity(x), gradient


def operations_of(function, take):
    """Types of operations of a gradient that are marked, that are returned, and others."""
    calls = []

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([3, 2])])
    def gradient(x):
        with own_gradients.marked_gradients(lambda f: False, lambda: calls.append(1)):
            return take(function, x)

    graph = gradient.get_concrete_function().graph
    operations = list(graph.get_operations())
    for definition in graph.as_graph_def().library.function:
        nested = [n for n in definition.node_def if own_gradients.is_own_node(n)]
        operations += nested
    nodes = [op if hasattr(op, "attr") else op.node_def for op in operations]
    own = [node for node in nodes if own_gradients.is_own_node(node)]
    returned = [op for op in graph.get_operations() if own_gradients.is_returned(op)]
    others = [node.op for node in nodes if not own_gradients.is_own_node(node)]
    return calls, [node.op for node in own], [op.type for op in returned], others


def by_tape(function, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.gradient(y, x)


def by_graph(function, x):
    return tf.gradients(function(x), x)[0]


def test_operations_of_a_gradient_are_marked_on_tapes_and_in_graphs():
    for take in (by_tape, by_graph):
        calls, own, returned, others = operations_of(halved, take)
        assert calls
        assert sorted(own) == ["Const", "Identity", "Mul"]
        assert returned == ["Identity"]
        assert "Mul" not in others


def test_gradients_of_tensorflow_within_are_not_marked():
    for take in (by_tape, by_graph):
        _, own, _, others = operations_of(squared_again, take)
        assert "Sin" in own and "Mul" in own
        assert "Cos" in others and "Cos" not in own


def test_rows_of_a_table_are_added_up_where_they_are_marked():
    _, own, returned, others = operations_of(rows_of_table, by_tape)
    assert "UnsortedSegmentSum" in own
    assert "UnsortedSegmentSum" not in others
    assert returned == ["Identity"]


def test_operations_in_functions_and_loops_are_marked():
    def looped(x):
        called = tf.function(halved, autograph=False)
        once = tf.while_loop(
            lambda i, _: i < 2, lambda i, v: (i + 1, called(v)), [0, x]
        )
        return once[1]

    _, own, _, _ = operations_of(looped, by_tape)
    assert "Mul" in own


def test_without_own_gradients_nothing_is_marked():
    calls, own, returned, _ = operations_of(tf.sin, by_tape)
    assert not calls and not own and not returned


class Scan(keras.layers.Layer):
    def call(self, x):
        return tf.scan(lambda a, b: a + b, x)


def test_what_ran_alone_is_forgotten_with_its_graph():
    model = keras.Sequential([keras.Input((3, 2)), Scan(), keras.layers.Dense(2)])
    model.compile(loss="mse")

    x = tf.ones([4, 3, 2])
    tf.function(clipped_gradient_sums, autograph=False)(model, x, x, l2_norm_clip=1.0)
    kept = weakref.ref(model)
    del model
    gc.collect()
    assert kept() is None


def test_a_run_is_forgotten_with_its_model():
    plan = tf_bandmf.plan(
        "dp_sgd",
        noise_multiplier=1.0,
        delta=1e-3,
        num_examples=4,
        batch_size=4,
        epochs=1,
    )
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    tf_bandmf.keras.make_private(model)
    optimizer = tf_bandmf.keras.PrivateOptimizer(keras.optimizers.SGD(), plan)
    model.compile(optimizer=optimizer, loss="mse")
    x = np.random.default_rng(0).normal(size=(4, 3)).astype("f4")
    model.fit(plan.batches(x, x[:, :1]), verbose=0)
    kept = weakref.ref(model)
    graphs = [each for each in gc.get_objects() if isinstance(each, FuncGraph)]
    handle = model.weights[0].value.handle
    steps = weakref.WeakSet(
        each
        for each in graphs
        if any(handle is captured for captured in each.external_captures)
    )
    assert steps
    del model, optimizer, graphs, handle
    gc.collect()
    assert kept() is None
    assert not steps
