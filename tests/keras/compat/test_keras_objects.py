"""Tests that the private Keras attributes that the package reads still exist.

If Keras renamed such an attribute, the package itself would not raise an error.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf.keras.compat import keras_objects as objects

layers = keras.layers


def test_what_is_attached_to_tensors_and_losses():
    tensor = layers.Masking()(tf.zeros([1, 2, 3]))
    assert getattr(tensor, objects.MASK) is not None
    probabilities = keras.activations.softmax(tf.zeros([1, 2]))
    assert getattr(probabilities, objects.LOGITS) is not None
    model = keras.Sequential([keras.Input((3,)), layers.Dense(1)])
    model.compile("adam", "mse")
    loss = objects.compile_loss(model)
    copy = objects.copied_loss(loss, objects.CompileLoss)
    arguments = tf.ones([2, 1]), tf.zeros([2, 1])
    assert float(copy(*arguments)) == float(loss(*arguments)) == 1.0


def test_what_stands_around_a_call():
    seen = []

    class Asking(layers.Layer):
        def call(self, x):
            for name in (objects.CALL_CONTEXT, objects.AUTOCAST_SCOPE):
                seen.append(objects.global_state.get_global_attribute(name))
            return x

    layer = Asking(dtype="mixed_float16")
    layer(tf.zeros([1]), training=None)
    context, autocast = seen
    assert context.entry_layer is layer and autocast is not None


@pytest.mark.parametrize("excluded", [False, True])
def test_variables_that_do_not_decay(excluded):
    variable, decayed = keras.Variable([1.0]), keras.optimizers.SGD(weight_decay=0.1)
    decayed.exclude_from_weight_decay([variable] if excluded else [])
    decayed.build([variable])
    assert objects.uses_weight_decay(decayed, variable) == (not excluded)


def test_adapted_layers_are_told_from_those_that_were_given_all():
    numbers, words = np.arange(12.0)[:, None], np.array(["a", "b", "a"])
    layers = keras.layers
    from_data = {
        layers.Normalization(): numbers,
        layers.Discretization(num_bins=3): numbers,
        layers.StringLookup(): words,
        layers.IntegerLookup(): np.arange(3),
        layers.TextVectorization(): words,
    }
    given = [
        layers.Normalization(mean=0.0, variance=1.0),
        layers.Discretization(bin_boundaries=[1.0, 2.0]),
        layers.StringLookup(vocabulary=["a"]),
        layers.IntegerLookup(vocabulary=[1]),
        layers.TextVectorization(vocabulary=["a"]),
        layers.Hashing(3),
        layers.Dense(2),
    ]
    for layer, data in from_data.items():
        layer.adapt(data)
        inside = getattr(layer, "_lookup_layer", layer)
        assert objects.adapted_layers(layer) == [inside]
    assert not any(map(objects.adapted_layers, given))
