"""Tests losses that depend on the other examples of a batch: refusals and warnings.

A loss is refused if its gradient for single examples is zero or cannot be computed. A
warning names a loss whose gradient for single examples merely differs from that for a
batch.
"""

import warnings

import keras
import pytest
import tensorflow as tf
from clipping_reference import assert_fit_refuses
from small_models import data, make_plan

from tf_bandmf.keras.clipping.losses.alone_and_together import compare
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError

losses, ops = keras.losses, keras.ops
TIME, CLASSES = 4, 5


def spec(*shape, dtype="float32"):
    return tf.zeros([2, *shape], dtype)


ONE, TWO, IMAGE = spec(1), spec(2), spec(3, 3, 1)
LABEL, WORDS = spec(dtype="int32"), spec(TIME, dtype="int32")
SCORES, TEXT = spec(CLASSES), spec(TIME, CLASSES)


def cox(y, p):
    """Computes Cox's negative partial log-likelihood; y is (time, event)."""
    at_risk = ops.cast(y[None, :, 0] >= y[:, None, 0], "float32")
    risk = ops.log(ops.sum(at_risk * ops.exp(p[:, 0])[None], axis=1))
    events = ops.maximum(ops.sum(y[:, 1]), 1.0)
    return -ops.sum(y[:, 1] * (p[:, 0] - risk)) / events


def in_batch_negatives(y, p):
    similarity = ops.matmul(p, ops.transpose(y))
    return losses.categorical_crossentropy(
        ops.eye(ops.shape(p)[0]), similarity, from_logits=True
    )


def hard(more_than):
    """Returns a loss that ignores errors below a threshold computed from the batch."""

    def loss(y, p):
        errors = ops.mean((y - p) ** 2, axis=-1)
        return errors * ops.cast(more_than(errors), "float32")

    return loss


def pairs(y, p):
    order = ops.sign(y - ops.transpose(y))
    margins = ops.softplus(-order * (p - ops.transpose(p)))
    return ops.sum(margins * ops.abs(order)) / (ops.sum(ops.abs(order)) + 1e-7)


def best(k):
    return lambda y, p: ops.mean(tf.math.top_k(ops.mean((y - p) ** 2, 1), k)[0])


REFUSED = {
    "cox": (cox, TWO, ONE),
    "negatives": (in_batch_negatives, TWO, TWO),
    "above_the_mean": (hard(lambda e: e > ops.mean(e)), ONE, ONE),
    "four_hardest": (best(4), ONE, ONE),
    "neighbors": (lambda y, p: ops.mean((p - ops.roll(p, 1, 0)) ** 2), ONE, TWO),
    "circle": (losses.Circle(), LABEL, SCORES),
    "one_of_two": ({"a": "mse", "b": cox}, {"a": ONE, "b": TWO}, {"a": ONE, "b": ONE}),
}
NAMED = {
    "dice": (losses.Dice(), IMAGE, IMAGE),
    "root": (lambda y, p: ops.sqrt(ops.mean((y - p) ** 2)), ONE, ONE),
    "from_the_mean": (hard(lambda e: e >= ops.mean(e)), ONE, ONE),
    "penalized_cox": (lambda y, p: cox(y, p) + ops.mean(p**2) / 100, TWO, ONE),
    "one_of_two": (
        {"a": losses.MeanSquaredError(), "b": losses.Dice()},
        {"a": ONE, "b": IMAGE},
        {"a": ONE, "b": IMAGE},
    ),
}


def masked(y, p):
    mask = ops.cast(y != 0, "float32")
    values = ops.sparse_categorical_crossentropy(y, p, from_logits=True)
    return ops.sum(mask * values) / ops.sum(mask)


def positive_only(y, p):
    """Returns the mean loss of the positive examples, or NaN if there are none."""
    positive = ops.cast(y == 1, "float32")
    return ops.sum(positive * ops.softplus(-p)) / ops.sum(positive)


HONEST = {
    "huber": (losses.Huber(reduction="sum"), TWO, TWO),
    "cosine": (losses.CosineSimilarity(), SCORES, SCORES),
    "dice_of_each": (losses.Dice(axis=(1, 2, 3)), IMAGE, IMAGE),
    "ignored": (losses.SparseCategoricalCrossentropy(ignore_class=1), WORDS, TEXT),
    "padded": (masked, WORDS, TEXT),
    "far_margin": (lambda y, p: ops.relu(p - 2), ONE, ONE),
    "no_gradient": (lambda y, p: 0 * p, ONE, ONE),
    "positive_only": (positive_only, ONE, ONE),
    "logarithms": (lambda y, p: -ops.sum(y * ops.log(p), -1), SCORES, SCORES),
    "connectionist": (losses.CTC(), spec(2, dtype="int32"), TEXT),
    "no_targets": (lambda y, p: p, None, ONE),
    "weights": (losses.Huber(), WORDS, spec(TIME), spec()),
    "one_of_two": (["mae", None], [ONE, ONE], [ONE, ONE]),
}


def check(loss, y, p, weight=None):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(loss=loss)
    compare(model, y, p, weight)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.invariant(16)
def test_loss_that_alone_teaches_nothing_is_refused(name):
    with pytest.raises(UnsupportedModelError, match="would learn nothing"):
        check(*REFUSED[name])


@pytest.mark.parametrize("name", NAMED)
def test_another_loss_alone_is_named(name):
    with pytest.warns(UserWarning, match="which is another loss"):
        check(*NAMED[name])


@pytest.mark.parametrize("name", HONEST)
def test_loss_of_single_examples_is_neither(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(*HONEST[name])


@pytest.mark.invariant(16)
def test_fit_refuses_before_it_trains():
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
    x, y = data[0], data[1][:, None] * 1.0
    message = "would learn nothing"
    assert_fit_refuses(model, make_plan(), (x, y), message, loss=pairs)
