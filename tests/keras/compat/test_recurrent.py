"""Tests that frozen recurrent layers use no cuDNN in a private step, even on a GPU."""

import importlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf.keras import make_private
from tf_bandmf.keras.clipping.sums.clipped_sums import clipped_gradient_sums


def operations_of(graph):
    return {op.type for op in graph.get_operations()}


def model_of(layer):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((4, 3)), layer(5, trainable=False), keras.layers.Dense(5)]
    )
    model.compile(loss="mse")
    make_private(model)
    return model


@pytest.mark.slow_cases("GRU")
@pytest.mark.parametrize("layer", [keras.layers.GRU, keras.layers.LSTM])
def test_the_layers_of_a_private_step_use_no_cudnn(layer, monkeypatch):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, 4, 3)).astype("f4"), np.ones((6, 5), "f4")

    def step(model):
        return clipped_gradient_sums(model, x, y, l2_norm_clip=1.0).sums

    on_a_cpu = step(model_of(layer))
    rnn = importlib.import_module("keras.src.backend.tensorflow.rnn")
    monkeypatch.setattr(rnn, "_is_gpu_available", lambda: True)
    model = model_of(layer)
    # Control: outside of a private step, Keras uses cuDNN.
    plain = tf.function(model).get_concrete_function(tf.TensorSpec(x.shape))
    assert "CudnnRNNV3" in operations_of(plain.graph)
    for one, other in zip(step(model), on_a_cpu, strict=True):
        np.testing.assert_array_equal(one, other)
