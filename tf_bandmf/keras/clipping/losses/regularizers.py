"""Gradients of weight regularizers, which need no clipping."""

from __future__ import annotations

import keras
import tensorflow as tf

from tf_bandmf.keras.compat.keras_objects import tensorflow_value


def regularization_gradients(model: keras.Model) -> list[tf.Tensor]:
    """Returns the gradients of the model's weight regularizers.

    These gradients depend only on weights, not on data, so they cost no privacy and
    need no clipping. Add them to the mean gradient *after* noise is added.

    Args:
      model: a built model.

    Returns:
      Float32 tensors in the order of `model.trainable_variables`, zeros for a weight
      without a regularizer.
    """
    variables = model.trainable_variables
    raw = [tensorflow_value(variable) for variable in variables]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(raw)
        penalties = [
            tf.reduce_sum(variable.regularizer(variable))
            for variable in variables
            if variable.regularizer is not None
        ]
    if not penalties:
        return [tf.zeros(tuple(variable.shape), tf.float32) for variable in variables]
    gradients = tape.gradient(
        penalties, raw, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    return [tf.cast(tf.convert_to_tensor(g), tf.float32) for g in gradients]
