"""Gradients of weight regularizers, which need no clipping."""

from __future__ import annotations

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.proof.updates import data_behind
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.clipping.tensors.variables import (
    tensorflow_variable,
    trainable_variables,
)


def regularization_gradients(model: keras.Model) -> list[tf.Tensor]:
    """Returns the gradients of the model's weight regularizers.

    They depend on the weights only, not on data: add them to the *noised* mean
    gradient. They are not part of what is clipped, and cost no privacy.

    Args:
      model: a built model.

    Returns:
      Float32 tensors aligned with `model.trainable_variables`, zeros where a weight
      has no regularizer.

    Raises:
      UnsupportedModelError: if a regularizer computes with something else than weights
        and constants, such as activations that a layer kept.
    """
    variables = trainable_variables(model)
    raw = [tensorflow_variable(variable) for variable in variables]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(raw)
        penalties = [
            tf.reduce_sum(variable.regularizer(variable))
            for variable in variables
            if variable.regularizer is not None
        ]
    for penalty in penalties:
        _refuse_data(penalty)
    if not penalties:
        return [tf.zeros(tuple(variable.shape), tf.float32) for variable in variables]
    gradients = tape.gradient(
        penalties, raw, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    return [tf.cast(tf.convert_to_tensor(g), tf.float32) for g in gradients]


def _refuse_data(penalty: tf.Tensor) -> None:
    """Follows a penalty back to what it is computed from."""
    op = data_behind([penalty])
    if op is not None:
        raise UnsupportedModelError(
            f"A weight's regularizer computes with {op.name!r} ({op.type}), which is "
            f"neither a weight nor a constant. What depends on data would reach the "
            f"weights without clipping or noise: put it into the loss."
        )
