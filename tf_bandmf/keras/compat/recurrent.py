"""Runs the recurrent layers of Keras without cuDNN.

On a GPU, Keras runs LSTM and GRU as one cuDNN operation over all time steps, which
cannot be analyzed. In private training, frozen recurrent layers run one time step after
another, as on a CPU. (Trained recurrent layers have a layer rule.)

Tests that fail if this breaks: `tests/keras/compat/test_recurrent.py`.
"""

from __future__ import annotations

import importlib
from typing import Any

import keras

from tf_bandmf.keras.compat.patching import patched

# The module is imported by name, because Keras' function `rnn` hides it.
_RNN = importlib.import_module("keras.src.backend.tensorflow.rnn")


def run_model(model: keras.Model, x: Any, training: bool = True) -> Any:
    """Calls a model in the same way as Keras does, but without cuDNN."""
    with patched(_RNN, "cudnn_ok", lambda *_, **__: False):
        return model(x, training=training)
