"""Callbacks that need a word before training begins."""

from __future__ import annotations

import warnings
from typing import Any

import keras


def restore_backup(model: keras.Model, callbacks: Any) -> None:
    """Lets `BackupAndRestore` restore before the data are asked for from its step on."""
    for callback in callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]:
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            callback.set_model(model)
            callback.on_train_begin()


def warn_of_private_monitors(callbacks: Any) -> None:
    """Callbacks that act on training metrics carry unnoised data into the weights."""
    callbacks = getattr(callbacks, "callbacks", callbacks)  # of a CallbackList
    for callback in callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]:
        monitor = getattr(callback, "monitor", None)
        acts = getattr(callback, "save_best_only", True)
        if isinstance(callback, keras.callbacks.TerminateOnNaN):
            warnings.warn(
                f"{type(callback).__name__} stops on the training loss, an exact function "
                f"of the training data: one record decides whether training goes on, and "
                f"that is not covered by the guarantee. Leave it out: an example whose "
                f"loss or gradient is not finite contributes zero.",
                stacklevel=3,
            )
        if isinstance(monitor, str) and acts and not monitor.startswith("val_"):
            warnings.warn(
                f"{type(callback).__name__} acts on {monitor!r}, an exact function of the "
                f"training data: what it does is not covered by the guarantee. Monitor a "
                f"metric of public validation data (val_...).",
                stacklevel=3,
            )
