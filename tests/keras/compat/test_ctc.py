"""Connectionist temporal classification of listed operations is that of TensorFlow."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_bandmf
from tf_bandmf.keras.clipping import clipped_gradient_sums
from tf_bandmf.keras.compat.ctc import ctc_loss

TIME, CLASSES, LABELS = 6, 4, 3
RNG = np.random.default_rng(0)
LOGITS = tf.constant(RNG.normal(size=(8, TIME, CLASSES)), tf.float32)
# The second has a label twice in a row; the last two have the blank as a label.
TARGETS = tf.constant(
    [
        [1, 2, 3],
        [2, 2, 1],
        [3, 0, 0],
        [1, 3, 1],
        [2, 3, 0],
        [1, 1, 0],
        [3, 0, 1],
        [0, 2, 0],
    ]
)
# As Keras counts them: labels that are not the blank.
LENGTHS = tf.reduce_sum(tf.cast(TARGETS > 0, tf.int32), axis=1)


@pytest.mark.parametrize("steps", [[TIME] * 8, [6, 5, 4, 6, 4, 4, 3, 3]])
@pytest.mark.parametrize("lengths", [LENGTHS, tf.fill([8], LABELS)])
def test_losses_and_gradients_are_those_of_tensorflow(lengths, steps):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(LOGITS)
        found = ctc_loss(TARGETS, LOGITS, lengths, tf.constant(steps), 0)
        expected = tf.nn.ctc_loss(
            TARGETS, LOGITS, lengths, steps, logits_time_major=False, blank_index=0
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


@pytest.mark.slow
@pytest.mark.invariant(16)
def test_fit_steps_along_the_clipped_gradients_of_single_examples():
    """Among the targets are padded ones, and some with the blank as a label."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((TIME, CLASSES)), keras.layers.Dense(CLASSES)]
    )
    expected = [np.zeros(v.shape) for v in model.trainable_variables]
    for x, y in zip(LOGITS, TARGETS, strict=True):
        gradients = gradient(model, x, y)
        share = tf.minimum(1.0, 0.5 / tf.linalg.global_norm(gradients))
        for part, g in zip(expected, gradients, strict=True):
            part += np.asarray(share * g) / 8
    before = model.get_weights()
    plan = tf_bandmf.plan(
        "identity",
        noise_multiplier=1e-2,
        delta=1e-5,
        num_examples=8,
        batch_size=8,
        epochs=1,
        l2_norm_clip=0.5,
        test_seed=0,
    )
    optimizer = keras.optimizers.SGD(1.0)
    tf_bandmf.keras.make_private(model)
    model.compile(tf_bandmf.keras.PrivateOptimizer(optimizer, plan), keras.losses.CTC())
    history = model.fit(plan.batches(LOGITS, TARGETS), epochs=1, verbose=0)
    for old, new, step in zip(before, model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(old - new, step, atol=6 * plan.noise_stddev / 8)
    model.set_weights(before)
    loss = keras.losses.CTC()(TARGETS, model(LOGITS))
    np.testing.assert_allclose(history.history["loss"], [float(loss)], rtol=1e-4)


def gradient(model, x, y):
    with tf.GradientTape() as tape:
        loss = keras.losses.CTC()(y[None], model(x[None]))
    return tape.gradient(loss, model.trainable_variables)


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
