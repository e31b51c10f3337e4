"""Losses that compare examples are refused; others only ever see one example."""

import independence_cases as cases
import keras
import pytest
import tensorflow as tf

from tf_bandmf.keras.clipping import UnsupportedModelError

ops = keras.ops


def in_batch_softmax(y, p):
    similarity = ops.matmul(p, ops.transpose(p))
    return ops.sparse_categorical_crossentropy(
        ops.arange(ops.shape(p)[0]), similarity, from_logits=True
    )


def contrastive(y, p):
    distances = ops.sum((p[:, None] - p[None]) ** 2, axis=-1)
    return ops.mean(ops.relu(1.0 - distances), axis=1)


def ranking(y, p):
    order = ops.argsort(p[:, 0])
    return ops.mean((p[:, 0] - ops.take(y[:, 0], order)) ** 2)


def normalized(y, p):
    """Divides by a statistic of the batch."""
    return ops.mean((y - p) ** 2, axis=-1) / (1e-3 + ops.std(p))


REFUSED = {
    "in_batch_softmax": in_batch_softmax,
    "contrastive": contrastive,
    "ranking": ranking,
    "einsum": lambda y, p: ops.logsumexp(ops.einsum("bd,cd->bc", p, y), axis=1),
    "hardest": lambda y, p: ops.max(ops.mean((y - p) ** 2, axis=1)),
    "neighbors": lambda y, p: ops.mean((p - ops.roll(p, 1, axis=0)) ** 2, axis=1),
    "around_the_mean": lambda y, p: ops.mean((p - ops.mean(p, axis=0)) ** 2),
    "covariance": lambda y, p: ops.mean((p - ops.mean(p)) * (y - ops.mean(y))),
    "weights_of_mean_one": lambda y, p: (y - p) ** 2 * y / ops.mean(y),
    "normalized": normalized,
    "circle": keras.losses.Circle(),
}


@pytest.mark.slow_cases("circle", "covariance", "normalized")
@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.invariant(16)
def test_loss_that_compares_examples_is_refused(name):
    model = cases.model_with(loss=REFUSED[name])
    with pytest.raises(UnsupportedModelError, match="loss"):
        cases.largest_change(model)


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


def batch_weights(y, p):
    weights = ops.softmax(ops.mean((y - p) ** 2, axis=-1), axis=0)
    return weights * ops.mean((y - p) ** 2, axis=-1)


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


@pytest.mark.invariant(16)
def test_weights_by_rank_in_the_batch_are_refused():
    model = cases.model_with(loss=batch_weights)
    with pytest.raises(UnsupportedModelError, match="loss"):
        cases.largest_change(model)
