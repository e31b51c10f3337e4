"""Connectionist temporal classification: each example's gradient is TensorFlow's."""

import keras
import numpy as np
import tensorflow as tf

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf.keras.clipping import clipped_gradient_sums

TIME, CLASSES, EXAMPLES = 6, 4, 4
RNG = np.random.default_rng(0)
X = RNG.normal(size=(EXAMPLES, TIME, CLASSES)).astype("f4")
# The second has a label twice in a row; 0 is the blank, and pads.
Y = np.array([[1, 2, 3], [2, 2, 1], [3, 0, 0], [1, 3, 0]])


def test_it_trains_and_its_sums_are_those_of_tensorflow():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((TIME, CLASSES)), keras.layers.Dense(CLASSES)]
    )
    plan = tf_bandmf.plan(
        "identity",
        noise_multiplier=1.0,
        delta=1e-5,
        num_examples=EXAMPLES,
        batch_size=EXAMPLES,
        epochs=1,
    )
    tf_bandmf.keras.make_private(model)
    optimizer = tf_bandmf.keras.PrivateOptimizer("sgd", plan)
    model.compile(optimizer, keras.losses.CTC())
    model.fit(plan.batches(X, Y), verbose=0)
    assert optimizer.steps_taken == 1
    step = tf.function(
        lambda: clipped_gradient_sums(model, X, Y, l2_norm_clip=1e6), autograph=False
    )
    actual = step().sums
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(keras.losses.CTC(reduction=None)(Y, model(X)))
    expected = tape.gradient(loss, [v.value for v in model.trainable_variables])
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
