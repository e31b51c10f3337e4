"""Regularizers may depend on weights and constants, never on data."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf.keras.clipping import UnsupportedModelError, regularization_gradients
from tf_bandmf.keras.run.programs import Update


def regularized(regularizer):
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(2, kernel_regularizer=regularizer)]
    )
    model.layers[0].kernel.assign(np.ones((3, 2)))
    return model


@pytest.mark.invariant(13)
def test_a_regularizer_of_kept_activations_is_refused():
    kept = []
    model = regularized(lambda w: tf.reduce_sum(w) * tf.reduce_mean(kept[-1]))
    tf.function(kept.append, autograph=False).get_concrete_function(tf.ones([4, 3]))
    with pytest.raises(UnsupportedModelError, match="reads a tensor"):
        Update(lambda: regularization_gradients(model))()


def test_a_regularizer_of_weights_and_constants_is_taken():
    factor = tf.constant([[2.0, 3.0]])
    model = regularized(
        lambda w: tf.reduce_sum(factor * w**2 * model.layers[0].bias.shape[0])
    )
    step = tf.function(lambda: regularization_gradients(model), autograph=False)
    np.testing.assert_allclose(step()[0], np.tile([[8.0, 12.0]], (3, 1)))
