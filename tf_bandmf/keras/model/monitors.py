"""Checks callbacks before training begins."""

from __future__ import annotations

import contextlib
import os
import warnings
from typing import Any

import keras

from tf_bandmf.keras.compat.averages import each_callback


def restore_backup(model: keras.Model, callbacks: Any) -> None:
    """Lets `BackupAndRestore` restore before the data are asked for from its step on.

    The epoch that the callback recorded is ignored: the optimizer's step, which belongs
    to the weights, says where the run is.

    Raises:
      ValueError: if the backup cannot be read.
    """
    for callback in each_callback(callbacks):
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            for name in ("training_metadata.json", "training_metadata.json.bkp"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(callback.backup_dir, name))
            callback.set_model(model)
            try:
                callback.on_train_begin()
            except Exception as error:  # h5py raises what it will
                raise ValueError(
                    f"The backup in {os.fspath(callback.backup_dir)} is damaged, or "
                    f"belongs to another model or optimizer "
                    f"({type(error).__name__}: {error}). Put back a whole copy of it; or "
                    f"delete that folder, and the run begins again at its first step, "
                    f"with the same batches and noise."
                ) from error


def warn_of_useless_backups(callbacks: Any) -> None:
    """Warns of backups without a private file: no run could resume from them."""
    kind = keras.callbacks.BackupAndRestore
    if any(isinstance(callback, kind) for callback in each_callback(callbacks)):
        warnings.warn(
            "BackupAndRestore without private_state: a private run is resumed with its "
            "key, which no backup holds, so that after a crash this run could not go on. "
            "Give fit private_state='run.private', the path of a file that you never "
            "share.",
            stacklevel=3,
        )


def warn_of_private_monitors(callbacks: Any) -> None:
    """Warns of callbacks that act on training metrics, which are data without noise."""
    for callback in each_callback(callbacks):
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
        if (
            isinstance(monitor, str)
            and acts
            and not monitor.startswith(("val_", "private_"))
        ):
            warnings.warn(
                f"{type(callback).__name__} acts on {monitor!r}, an exact function of the "
                f"training data: what it does is not covered by the guarantee. Monitor a "
                f"metric of public validation data (val_...), or a private one "
                f"(tf_bandmf.keras.PrivateEvaluation, private_...).",
                stacklevel=3,
            )
