"""Restores backups before training begins."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import keras

from tf_bandmf.keras.run.callbacks import each_callback


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
