"""Stops Keras from dividing losses by the replica count, and from summing gradients.

Clipping needs the gradient of the undivided loss. Gradients must not be summed over
replicas, since each replica already has the whole noisy gradient.

Tests that fail if this breaks: those in `tests/keras/run/test_distribution.py` that
compare the weights of two replicas with those of one.
"""

from __future__ import annotations

import contextlib

import keras
from keras.src.losses import loss as loss_module

from tf_bandmf.keras.compat.patching import patched


def unscaled_losses() -> contextlib.AbstractContextManager[None]:
    """Returns a context in which Keras does not divide losses by the number of replicas.

    The context applies to this thread. It would be wrong to multiply the losses by the
    number of replicas instead, since Keras does not divide losses that return a scalar.
    """
    return patched(loss_module, "scale_loss_for_distribution", lambda _, value: value)


def keep_gradients_apart(optimizer: keras.optimizers.Optimizer) -> None:
    """Permanently stops an optimizer from summing gradients over replicas."""
    vars(optimizer)["_all_reduce_sum_gradients"] = list
