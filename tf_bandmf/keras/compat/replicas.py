"""Stops Keras from dividing by the number of replicas, and from summing over replicas.

Clipping needs the gradient of the undivided loss, and each replica already has the whole
noisy gradient.

Tests that fail if it breaks: the weights of two replicas in
`tests/keras/run/test_distribution.py`.
"""

from __future__ import annotations

import contextlib

import keras
from keras.src.losses import loss as loss_module

from tf_bandmf.keras.compat.patching import patched


def unscaled_losses() -> contextlib.AbstractContextManager[None]:
    """Returns a context in which this thread divides no losses by the number of replicas.

    Multiplying afterwards would be wrong for losses that Keras does not scale (those
    that return a scalar).
    """
    return patched(loss_module, "scale_loss_for_distribution", lambda _, value: value)


def keep_gradients_apart(optimizer: keras.optimizers.Optimizer) -> None:
    """Permanently stops an optimizer from adding up gradients over replicas."""
    vars(optimizer)["_all_reduce_sum_gradients"] = list
