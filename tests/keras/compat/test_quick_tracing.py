"""Tracing with less effort makes the same graphs, and shares equal constants."""

import gc
import weakref

import pytest
import tensorflow as tf

from tf_bandmf.keras.compat import quick_tracing
from tf_bandmf.keras.compat.quick_tracing import own_constants, shared_constants


def graph_of(function, *context):
    spec = tf.TensorSpec([None], tf.float32)

    def within(x):
        with context[0]() if context else own_constants():
            return function(x)

    return tf.function(within, autograph=False).get_concrete_function(spec)


def constants(function, *context):
    operations = graph_of(function, *context).graph.get_operations()
    return sum(op.type == "Const" for op in operations)


def test_the_graph_of_a_step_is_the_same():
    variable = tf.Variable(1.0)

    def step(x):
        variable.assign_add(tf.reduce_sum(x))
        before = variable.read_value()
        variable.assign(2.0 * before)
        y = tf.cond(before > 3.0, lambda: x + variable, lambda: x)
        with tf.control_dependencies([tf.debugging.Assert(before > 0.0, ["no"])]):
            return tf.identity(y), variable.read_value()

    def made():
        found = graph_of(step)
        definition = found.graph.as_graph_def()
        control = [
            sorted(op.name for op in op.control_inputs) for op in operations(found)
        ]
        return [(n.op, list(n.input)) for n in definition.node], control, found

    def operations(found):
        return found.graph.get_operations()

    plain = made()
    with quick_tracing.quick_tracing():
        quick = made()
        assert float(quick[2](tf.ones([2]))[1]) == 6.0
    strip = [[(op, len(inputs)) for op, inputs in found[0]] for found in (plain, quick)]
    assert strip[0] == strip[1]
    assert [len(c) for c in plain[1]] == [len(c) for c in quick[1]]


def test_its_hooks_are_called(monkeypatch):
    """What is replaced is still what TensorFlow calls: else it would cost, and not save."""
    called = set()
    for name in ("_satisfies", "_resource_inputs", "_as_default"):
        own = getattr(quick_tracing, name)

        def noted(*args, own=own, name=name, **kwargs):
            called.add(name)
            return own(*args, **kwargs)

        monkeypatch.setattr(quick_tracing, name, noted)
    with quick_tracing.quick_tracing():
        graph_of(lambda x: tf.raw_ops.Neg(x=x))
    assert called == {"_satisfies", "_resource_inputs", "_as_default"}


def test_wrong_types_are_refused_as_before():
    def wrong(x):
        return tf.raw_ops.Neg(x=tf.constant("text"))

    for context in (own_constants, quick_tracing.quick_tracing):
        with pytest.raises(TypeError, match="not in list of allowed values"):
            graph_of(wrong, context)


def test_equal_constants_of_one_graph_are_one():
    def function(x):
        return tf.reshape(tf.reshape(x, [-1]) + 1.0, [-1]) + 1.0

    assert constants(function) == 4
    assert constants(function, shared_constants) == 2


def test_other_types_branches_and_devices_have_their_own():
    def function(x):
        with tf.device("/CPU:0"):
            elsewhere = tf.constant(1)
        found = [
            tf.constant(1),
            tf.constant(True),
            tf.constant(1.0),
            tf.constant(1, tf.int64),
        ]
        y = tf.cond(found[1], lambda: x + 1.0, lambda: x)
        return [*found, elsewhere, y]

    with shared_constants():
        found = graph_of(function, shared_constants)(tf.zeros([1]))
    assert [t.dtype for t in found[:4]] == [tf.int32, tf.bool, tf.float32, tf.int64]
    assert float(found[5][0]) == 1.0
    assert constants(lambda x: function(x)[:5], shared_constants) == 5


def test_what_stands_for_a_time_or_for_others_is_made_anew():
    def after(x):
        first = tf.constant(1.0)
        with tf.control_dependencies([tf.debugging.Assert(x[0] > 0.0, ["no"])]):
            second = tf.constant(1.0)
        assert second is not first and second.op.control_inputs
        return second

    with pytest.raises(tf.errors.InvalidArgumentError):
        graph_of(after, shared_constants)(tf.zeros([1]))

    def of_others(x):
        first = tf.constant(1.0)
        with own_constants():
            assert tf.constant(1.0) is not first
        assert tf.constant(1.0) is first
        return x

    graph_of(of_others, shared_constants)


def test_no_graph_is_kept():
    found = graph_of(lambda x: x + 1.0, shared_constants)
    graph = weakref.ref(found.graph)
    del found
    gc.collect()
    assert graph() is None
