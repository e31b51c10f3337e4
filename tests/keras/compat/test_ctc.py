"""Connectionist temporal classification of listed operations is that of TensorFlow."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf.keras.clipping import clipped_gradient_sums
from tf_bandmf.keras.compat.ctc import ctc_loss

TIME, CLASSES, LABELS = 6, 4, 3
RNG = np.random.default_rng(0)
LOGITS = tf.constant(RNG.normal(size=(8, TIME, CLASSES)), tf.float32)
# The second has a label twice in a row.
TARGETS = tf.constant(
    [
        [1, 2, 3],
        [2, 2, 1],
        [3, 0, 0],
        [1, 3, 1],
        [2, 3, 0],
        [1, 1, 0],
        [3, 2, 1],
        [2, 0, 0],
    ]
)
LENGTHS = tf.reduce_sum(tf.cast(TARGETS > 0, tf.int32), axis=1)


@pytest.mark.parametrize("steps", [[TIME] * 8, [6, 5, 1, 6, 4, 3, 3, 2]])
def test_losses_and_gradients_are_those_of_tensorflow(steps):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(LOGITS)
        found = ctc_loss(TARGETS, LOGITS, LENGTHS, tf.constant(steps), 0)
        expected = tf.nn.ctc_loss(
            TARGETS, LOGITS, LENGTHS, steps, logits_time_major=False, blank_index=0
        )
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    gradients = tape.gradient(found, LOGITS), tape.gradient(expected, LOGITS)
    np.testing.assert_allclose(*gradients, atol=1e-5)


def test_more_labels_than_steps_have_an_infinite_loss():
    lengths = tf.constant([2] * 8)
    assert np.isinf(ctc_loss(TARGETS, LOGITS, LENGTHS, lengths, 0)[0])


def examples(count=4):
    return LOGITS[:count], TARGETS[:count]


@pytest.fixture(scope="module")
def clipped():
    """Clipped sums of a model with that loss, and the model."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((TIME, CLASSES)), keras.layers.Dense(CLASSES)]
    )
    model.compile(loss=keras.losses.CTC())
    signature = [
        tf.TensorSpec([None, TIME, CLASSES]),
        tf.TensorSpec([None, LABELS], tf.int32),
    ]
    step = tf.function(
        lambda x, y: clipped_gradient_sums(model, x, y, l2_norm_clip=0.5),
        autograph=False,
        input_signature=signature,
    )
    return model, step


def gradient(model, x, y):
    with tf.GradientTape() as tape:
        loss = keras.losses.CTC()(y[None], model(x[None]))
    return tape.gradient(loss, model.trainable_variables)


@pytest.mark.slow
@pytest.mark.invariant(16)
def test_gradients_of_a_private_model_are_clipped_as_those_of_each_example(clipped):
    model, step = clipped
    x, y = examples()
    result = step(x, y)
    total = [np.zeros(v.shape) for v in model.trainable_variables]
    for i in range(len(x)):
        gradients = gradient(model, x[i], y[i])
        norm = tf.linalg.global_norm(gradients)
        np.testing.assert_allclose(result.norms[i], norm, rtol=1e-4)
        for part, g in zip(total, gradients, strict=True):
            part += np.asarray(g * tf.minimum(1.0, 0.5 / norm))
    for found, expected in zip(result.sums, total, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.invariant(18)
def test_a_target_that_is_no_class_ends_no_step_and_moves_no_other(clipped):
    _, step = clipped
    x, y = examples()
    bad = np.array(y)
    bad[0], bad[1] = [1, 9, 2], [-3, 2, 1]
    assert np.isnan(step(x, bad).losses[:2]).all()
    result, others = step(x, bad), step(x[2:], y[2:])
    for found, expected in zip(result.sums, others.sums, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)
