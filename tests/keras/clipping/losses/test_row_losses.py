"""Losses whose rows are those of the examples: which are, and that they are."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.trainers.compile_utils import CompileLoss

from tf_bandmf.keras.clipping.losses.rows import row_losses

losses = keras.losses
BATCH, CLASSES = 5, 3
RNG = np.random.default_rng(0)
LOGITS = tf.constant(RNG.normal(size=(BATCH, CLASSES)), tf.float32)
ONE_HOT = tf.one_hot([0, 2, 1, 1, 0], CLASSES)
WEIGHTS = tf.constant([1.0, 0.0, 2.5, 0.3, 1.0])
LABELS = tf.constant([0, 2, 1, 1, 0])


def compiled(loss, **arguments):
    return CompileLoss(loss=loss, **arguments)


def one_by_one(loss, y, y_pred, weights):
    """The compiled loss of batches of one example."""
    actual = []
    for i in range(BATCH):
        weight = None if weights is None else weights[i : i + 1]
        value = compiled(loss)(y[i : i + 1], y_pred[i : i + 1], weight)
        actual.append(tf.reduce_sum(value))
    return tf.stack(actual)


def assert_one_by_one(loss, y, inputs, weights, predict=tf.identity):
    """Losses and their gradients are those of batches of one."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(inputs)
        y_pred = predict(inputs)
        rows = row_losses(compiled(loss), y, y_pred, weights)
        expected = one_by_one(loss, y, y_pred, weights)
    assert rows.shape == (BATCH,)
    np.testing.assert_allclose(rows, expected, rtol=2e-6)
    np.testing.assert_allclose(
        tape.gradient(rows, inputs), tape.gradient(expected, inputs), atol=2e-6
    )


CASES = {
    "labels": (losses.SparseCategoricalCrossentropy(from_logits=True), LABELS),
    "column_of_labels": (
        losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum"),
        LABELS[:, None],
    ),
    "one_hot": (
        losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
        ONE_HOT,
    ),
    "binary": (losses.BinaryCrossentropy(from_logits=True, reduction="none"), ONE_HOT),
    "squares": (losses.MeanSquaredError(reduction="mean"), ONE_HOT),
    "absolute": ("mean_absolute_error", ONE_HOT),
    "name": ("sparse_categorical_crossentropy", LABELS),
    "crossentropy": ("crossentropy", LABELS),
}


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["", "weights"])
@pytest.mark.parametrize("case", CASES)
def test_rows_are_the_losses_of_the_examples(case, weights):
    loss, y = CASES[case]
    from_logits = not isinstance(loss, str) or case == "absolute"
    probabilities = tf.identity if from_logits else tf.nn.softmax
    assert_one_by_one(loss, y, LOGITS, weights, probabilities)


TEXTS = tf.constant(RNG.normal(size=(BATCH, 4, CLASSES)), tf.float32)
WORDS = tf.constant(RNG.integers(0, CLASSES, size=(BATCH, 4)), tf.int32)
IMAGES = tf.constant(RNG.uniform(0.1, 0.9, size=(BATCH, 2, 3, 1)), tf.float32)
POSITIONS = {
    "words": (losses.SparseCategoricalCrossentropy(from_logits=True), WORDS, TEXTS),
    "columns of words": (
        losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum"),
        WORDS[..., None],
        TEXTS,
    ),
    "one hot": (
        losses.CategoricalCrossentropy(from_logits=True, reduction="none"),
        tf.one_hot(WORDS, CLASSES),
        TEXTS,
    ),
    "series": (losses.MeanSquaredError(reduction="mean"), 2.0 * TEXTS, TEXTS),
    "images": ("binary_crossentropy", IMAGES[::-1], IMAGES),
}


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["", "weights"])
@pytest.mark.parametrize("case", POSITIONS)
def test_positions_are_reduced_as_in_a_batch_of_one(case, weights):
    assert_one_by_one(*POSITIONS[case], weights)


def test_logits_that_a_softmax_keeps_are_used():
    """A saturated softmax: of probabilities alone the loss would be that of epsilon."""
    y_pred = keras.activations.softmax(100.0 * LOGITS)
    loss = losses.SparseCategoricalCrossentropy()
    rows = row_losses(compiled(loss), LABELS, y_pred, None)
    logits = losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    assert float(tf.reduce_max(rows)) > 20.0
    np.testing.assert_allclose(rows, logits(LABELS, 100.0 * LOGITS), rtol=1e-5)


class Subclass(losses.MeanSquaredError):
    pass


def with_attribute(name, value):
    loss = losses.MeanSquaredError()
    setattr(loss, name, value)
    return loss


def mean_of_all(y, y_pred):
    return tf.reduce_mean((y - y_pred) ** 2) + tf.zeros_like(y_pred[:, 0])


NOT_IN_THE_LIST = {
    "subclass": Subclass(),
    "function": with_attribute("fn", mean_of_all),
    "another_function": with_attribute("fn", losses.mean_absolute_error),
    "arguments": with_attribute("_fn_kwargs", {"axis": 0}),
    "own_function": mean_of_all,
    "axis": losses.CategoricalCrossentropy(from_logits=True, axis=0),
    "smoothing": losses.CategoricalCrossentropy(label_smoothing=tf.constant(0.1)),
    "ignored_class": losses.SparseCategoricalCrossentropy(ignore_class=1),
    "divided_by_weights": losses.MeanSquaredError(reduction="mean_with_sample_weight"),
    "dice": losses.Dice(),
    "circle": losses.Circle(),
}


@pytest.mark.parametrize("name", NOT_IN_THE_LIST)
def test_other_losses_are_not_in_the_list(name):
    assert row_losses(compiled(NOT_IN_THE_LIST[name]), ONE_HOT, LOGITS, None) is None


def test_other_structures_are_not_in_the_list():
    cube = tf.zeros([BATCH, BATCH, CLASSES])
    loss = compiled("mse")
    # They would be broadcast, examples to positions.
    assert row_losses(loss, cube[..., 0], cube, None) is None
    assert row_losses(loss, cube, cube, WEIGHTS[:, None]) is None
    assert row_losses(loss, ONE_HOT, LOGITS, ONE_HOT) is None
    assert row_losses(loss, [ONE_HOT], [LOGITS], None) is None
    masked = tf.identity(LOGITS)
    masked._keras_mask = tf.ones([BATCH], tf.bool)
    assert row_losses(loss, ONE_HOT, masked, None) is None
    weighted = compiled("mse", loss_weights=2.0)
    assert row_losses(weighted, ONE_HOT, LOGITS, None) is None


def test_positions_that_do_not_match_are_an_error():
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)
    with pytest.raises(ValueError, match="shape"):
        row_losses(compiled(loss), WORDS[:, :3], TEXTS, None)


@pytest.mark.invariant(16)
def test_one_target_is_not_broadcast_to_all_examples():
    signature = [tf.TensorSpec([None, CLASSES])] * 2

    @tf.function(autograph=False, input_signature=signature)
    def rows(y, y_pred):
        return row_losses(compiled("mse"), y, y_pred, None)

    assert rows(ONE_HOT, LOGITS).shape == (BATCH,)
    with pytest.raises(tf.errors.InvalidArgumentError, match="per example"):
        rows(ONE_HOT[:1], LOGITS)
