"""The private step gives a loss single examples, whatever it does with several."""

import independence_cases as cases
import keras
import pytest
import tensorflow as tf

from tf_bandmf.keras.clipping import UnsupportedModelError

ops = keras.ops


def host_code(y, p):
    error = tf.numpy_function(lambda a: a.mean().astype("f4"), [p], tf.float32)
    return ops.mean((y - p) ** 2) * tf.ensure_shape(error, ())


@pytest.mark.invariant(16)
def test_loss_with_host_code_is_refused():
    with pytest.raises(UnsupportedModelError, match="code outside of the graph"):
        cases.largest_change(cases.model_with(loss=host_code))


def ratio(y, p):
    """A mean over what a mask leaves of the batch; alone, over what it leaves of one."""
    mask = ops.cast(ops.abs(y) > 0.1, "float32")
    return ops.sum(mask * (y - p) ** 2) / (1e-3 + ops.sum(mask))


@tf.custom_gradient
def mixed_backward(x):
    return tf.identity(x), lambda d: d + tf.reduce_sum(d, axis=0, keepdims=True)


def replaced_function():
    loss = keras.losses.MeanSquaredError()
    loss.fn = ratio
    return loss


ALONE = {
    "ratio": ratio,
    "replaced_function": replaced_function(),
    "custom_gradient": lambda y, p: ops.mean((y - mixed_backward(p)) ** 2, axis=-1),
}


@pytest.mark.slow_cases("replaced_function")
@pytest.mark.parametrize("name", ALONE)
@pytest.mark.invariant(16)
def test_loss_sees_one_example_alone(name):
    model = cases.model_with(loss=ALONE[name])
    assert cases.largest_change(model) <= 1 + 1e-3
