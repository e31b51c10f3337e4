"""A linear model of three inputs in TensorFlow Federated, and its clients' examples."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

INPUT_SPEC = (tf.TensorSpec([None, 3]), tf.TensorSpec([None, 1]))


def model_fn():
    layer = tf.keras.layers.Dense(1, input_shape=(3,), kernel_initializer="zeros")
    return tff.learning.models.from_keras_model(
        tf.keras.Sequential([layer]),
        loss=tf.keras.losses.MeanSquaredError(),
        input_spec=INPUT_SPEC,
    )


def examples(client, shift=0.0, bad=False):
    """Returns two batches that depend on the client's number."""
    rng = np.random.default_rng(client)
    x = rng.normal(size=(8, 3)).astype(np.float32) + np.float32(shift)
    if bad:
        x[0, 0] = np.nan
    return tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).batch(4)
