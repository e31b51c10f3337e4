"""Tests that `row_losses` returns per-example losses, or None if it cannot find them."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import losses
from keras.src.trainers.compile_utils import CompileLoss

from tf_bandmf.keras.clipping.losses.rows import row_losses

BATCH, CLASSES = 5, 3
RNG = np.random.default_rng(0)
LOGITS = tf.constant(RNG.normal(size=(BATCH, CLASSES)), tf.float32)
ONE_HOT = tf.one_hot([0, 2, 1, 1, 0], CLASSES)
WEIGHTS = tf.constant([1.0, 0.0, 2.5, 0.3, 1.0])
LABELS = tf.constant([0, 2, 1, 1, 0])
TEXTS = tf.constant(RNG.normal(size=(BATCH, 4, CLASSES)), tf.float32)
WORDS = tf.constant(RNG.integers(0, CLASSES, size=(BATCH, 4)), tf.int32)
IMAGES = tf.constant(RNG.uniform(0.1, 0.9, size=(BATCH, 2, 3, 1)), tf.float32)
CHANCES = tf.nn.softmax(LOGITS)


def compiled(loss, **arguments):
    return CompileLoss(loss=loss, **arguments)


def sparse(**arguments):
    return losses.SparseCategoricalCrossentropy(from_logits=True, **arguments)


def one_hot(**arguments):
    return losses.CategoricalCrossentropy(from_logits=True, **arguments)


CASES = {
    "labels": (sparse(), LABELS, LOGITS),
    "column of labels": (sparse(reduction="sum"), LABELS[:, None], LOGITS),
    "one hot": (one_hot(label_smoothing=0.1), ONE_HOT, LOGITS),
    "binary": (
        losses.BinaryCrossentropy(from_logits=True, reduction="none"),
        ONE_HOT,
        LOGITS,
    ),
    "squares": (losses.MeanSquaredError(reduction="mean"), ONE_HOT, LOGITS),
    "absolute": ("mean_absolute_error", ONE_HOT, LOGITS),
    "name": ("sparse_categorical_crossentropy", LABELS, CHANCES),
    "crossentropy": ("crossentropy", LABELS, CHANCES),
    "words": (sparse(), WORDS, TEXTS),
    "columns of words": (sparse(reduction="sum"), WORDS[..., None], TEXTS),
    "words, one hot": (one_hot(reduction="none"), tf.one_hot(WORDS, CLASSES), TEXTS),
    "series": (losses.MeanSquaredError(), 2.0 * TEXTS, TEXTS),
    "images": ("binary_crossentropy", IMAGES[::-1], IMAGES),
}


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["", "weights"])
@pytest.mark.parametrize("case", CASES)
def test_rows_and_their_gradients_are_those_of_batches_of_one(case, weights):
    loss, y, inputs = CASES[case]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(inputs)
        y_pred = tf.identity(inputs)
        rows = row_losses(compiled(loss), y, y_pred, weights)
        expected = []
        for one in (slice(i, i + 1) for i in range(BATCH)):
            weight = None if weights is None else weights[one]
            value = compiled(loss)(y[one], y_pred[one], weight)
            expected.append(tf.reduce_sum(value))
        expected = tf.stack(expected)
    assert rows.shape == (BATCH,)
    np.testing.assert_allclose(rows, expected, rtol=2e-6)
    gradients = (tape.gradient(each, inputs) for each in (rows, expected))
    np.testing.assert_allclose(*gradients, atol=2e-6)


def test_logits_that_a_softmax_keeps_are_used():
    """Asserts that the loss of a saturated softmax is exact, as it uses the logits."""
    y_pred = keras.activations.softmax(100.0 * LOGITS)
    loss = losses.SparseCategoricalCrossentropy()
    rows = row_losses(compiled(loss), LABELS, y_pred, None)
    assert float(tf.reduce_max(rows)) > 20.0
    expected = sparse(reduction="none")(LABELS, 100.0 * LOGITS)
    np.testing.assert_allclose(rows, expected, rtol=1e-5)


class Subclass(losses.MeanSquaredError):
    pass


def with_attribute(name, value):
    loss = losses.MeanSquaredError()
    setattr(loss, name, value)
    return loss


def mean_of_all(y, y_pred):
    return tf.reduce_mean((y - y_pred) ** 2) + tf.zeros_like(y_pred[:, 0])


def masked(tensor):
    tensor = tf.identity(tensor)
    tensor._keras_mask = tf.ones([BATCH], tf.bool)
    return tensor


OTHERS = [
    Subclass(),
    with_attribute("fn", mean_of_all),
    with_attribute("_fn_kwargs", {"axis": 0}),
    mean_of_all,
    one_hot(axis=0),
    one_hot(label_smoothing=tf.constant(0.1)),
    sparse(ignore_class=1),
    losses.MeanSquaredError(reduction="mean_with_sample_weight"),
    losses.Dice(),
]
CUBE = tf.zeros([BATCH, BATCH, CLASSES])


def test_other_losses_and_structures_are_not_in_the_list():
    for loss in OTHERS:
        assert row_losses(compiled(loss), ONE_HOT, LOGITS, None) is None, loss
    for data in [
        # Keras would broadcast these targets along the wrong axis.
        (CUBE[..., 0], CUBE, None),
        (CUBE, CUBE, WEIGHTS[:, None]),
        (ONE_HOT, LOGITS, ONE_HOT),
        ([ONE_HOT], [LOGITS], None),
        (ONE_HOT, masked(LOGITS), None),
    ]:
        assert row_losses(compiled("mse"), *data) is None, data
    weighted = compiled("mse", loss_weights=2.0)
    assert row_losses(weighted, ONE_HOT, LOGITS, None) is None


@pytest.mark.invariant(16)
def test_one_target_is_not_broadcast_to_all_examples():
    signature = [tf.TensorSpec([None, CLASSES])] * 2

    @tf.function(autograph=False, input_signature=signature)
    def rows(y, y_pred):
        return row_losses(compiled("mse"), y, y_pred, None)

    assert rows(ONE_HOT, LOGITS).shape == (BATCH,)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Each example"):
        rows(ONE_HOT[:1], LOGITS)
    with pytest.raises(ValueError, match="shape"):
        row_losses(compiled(sparse()), WORDS[:, :3], TEXTS, None)
