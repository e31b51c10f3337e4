"""Tests the gradient that the package registers for an XLA operation."""

import tensorflow as tf

from tf_bandmf.keras.compat import graphs


def test_a_gradient_passes_what_xla_computes_once():
    # If TensorFlow ever registers this gradient itself, the test fails with an error.
    @tf.function(jit_compile=True)
    def slope(x):
        (once,) = graphs.gen_xla_ops.xla_optimization_barrier(input=[x])
        return tf.gradients(tf.square(once), x)[0]

    assert float(slope(tf.constant(3.0))) == 6.0


def test_flattened_arguments_keep_their_places():
    args = {"b": tf.constant(5.0), "a": tf.constant(3.0)}, None
    concrete = tf.function(lambda x, _: x["b"] - x["a"]).get_concrete_function(*args)
    assert float(graphs.call_flat(concrete, tf.nest.flatten(args))) == 2.0
