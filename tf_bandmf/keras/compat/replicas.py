"""Stops Keras from dividing by the number of replicas, and from adding up over them.

Clipping needs the gradient of the undivided loss, and each replica already has the whole
noisy gradient.

What tells that it broke: the weights of two replicas in
`tests/keras/run/test_distribution.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.losses import loss as loss_module

from tf_bandmf.keras.compat.patching import patched


@contextlib.contextmanager
def unscaled_losses() -> Iterator[None]:
    """Stops Keras from dividing losses by the number of replicas, in this thread.

    Multiplying afterwards would be wrong for losses that Keras does not scale (those
    that return a scalar).
    """
    if tf.distribute.get_strategy().num_replicas_in_sync == 1:
        yield
        return
    with patched(loss_module, "scale_loss_for_distribution", _as_it_is):
        yield


def _as_it_is(original: Any, value: Any) -> Any:
    del original
    return value


def keep_gradients_apart(optimizer: keras.optimizers.Optimizer) -> None:
    """Permanently stops an optimizer from adding up gradients over replicas."""
    vars(optimizer)["_all_reduce_sum_gradients"] = list
