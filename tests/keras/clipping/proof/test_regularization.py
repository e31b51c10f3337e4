"""A regularizer that reads activations is refused: they depend on the data."""

import keras
import pytest
import tensorflow as tf

from tf_bandmf.keras.clipping import UnsupportedModelError, regularization_gradients
from tf_bandmf.keras.run.programs import Update


@pytest.mark.invariant(13)
def test_a_regularizer_of_kept_activations_is_refused():
    kept = []
    penalty = lambda w: tf.reduce_sum(w) * tf.reduce_mean(kept[-1])  # noqa: E731
    dense = keras.layers.Dense(2, kernel_regularizer=penalty)
    model = keras.Sequential([keras.Input((3,)), dense])
    tf.function(kept.append, autograph=False).get_concrete_function(tf.ones([4, 3]))
    with pytest.raises(UnsupportedModelError, match="reads a tensor"):
        Update(lambda: regularization_gradients(model))()
