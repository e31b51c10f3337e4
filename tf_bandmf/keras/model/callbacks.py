"""Checks the callbacks of `fit`: their folders and the metrics they monitor."""

from __future__ import annotations

import os
import pathlib
import warnings
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.compat.keras_objects import given_learning_rate

# Prefixes of metrics that do not reveal exact numbers about the training data.
_PUBLIC = ("val_", "private_")


def each_callback(callbacks: Any) -> list[Any]:
    """Lists the callbacks in the argument of `fit`: None, one callback, or several."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    return [] if callbacks is None else tf.nest.flatten(callbacks)


def without_key(callbacks: Any) -> Iterator[str]:
    """Yields a warning if `BackupAndRestore` is used without a private state file."""
    for callback in each_callback(callbacks):
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            yield (
                "BackupAndRestore needs private_state: a run can only be resumed with its "
                "key, which no backup holds. Give fit private_state='run.private', the "
                "path of a file that you never share."
            )


def acting_on_exact_metrics(callbacks: Any) -> Iterator[str]:
    """Yields a warning for each callback that acts on exact metrics of training data."""
    for callback in each_callback(callbacks):
        monitor = getattr(callback, "monitor", None)
        if isinstance(callback, keras.callbacks.TerminateOnNaN):
            monitor = "loss"
        is_private = isinstance(monitor, str) and not monitor.startswith(_PUBLIC)
        if is_private and getattr(callback, "save_best_only", True):
            yield (
                f"{type(callback).__name__} acts on {monitor!r}, an exact function of the "
                f"training data, which is not covered by the guarantee. Monitor a metric "
                f"of public validation data (val_...), or a private one "
                f"(tf_bandmf.keras.PrivateEvaluation, private_...)."
            )


def restore_backup(model: keras.Model, callbacks: Any) -> None:
    """Lets `BackupAndRestore` restore the model before the run takes its first batch.

    The step of the restored optimizer determines the next batch; the epoch that the
    callback recorded is ignored. The learning rate also comes from the backup; if it
    differs from the one that the program set, a warning says so.

    Raises:
      ValueError: if the backup cannot be read.
    """
    for callback in each_callback(callbacks):
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            for name in ("training_metadata.json", "training_metadata.json.bkp"):
                pathlib.Path(callback.backup_dir, name).unlink(missing_ok=True)
            callback.set_model(model)
            optimizer = model.optimizer.inner_optimizer
            given = float(optimizer.learning_rate)
            try:
                callback.on_train_begin()
            except Exception as error:  # h5py may raise exceptions of any type.
                raise ValueError(
                    f"The backup in {os.fspath(callback.backup_dir)} is damaged, or of "
                    f"another model or optimizer ({type(error).__name__}: {error}). "
                    f"Restore an intact copy of the folder; or delete it to begin the "
                    f"run again at its first step, with the same batches and noise."
                ) from error
            rate = float(optimizer.learning_rate)
            is_constant = isinstance(given_learning_rate(optimizer), keras.Variable)
            if rate != given and is_constant:
                warnings.warn(
                    f"The run goes on with the learning rate of its backup, {rate:.3g}: "
                    f"the program's, {given:.3g}, has no effect. To change it, set "
                    f"model.optimizer.learning_rate in a callback.",
                    stacklevel=3,
                )


def refuse_shared_folder(path: str | os.PathLike[str], callbacks: Any) -> None:
    """Raises ValueError if the private state file is in the folder of a callback.

    Callbacks' folders are often shared, and `BackupAndRestore` deletes its folder after
    training. A file in a subfolder of a callback's folder is refused, too, unless the
    callback's folder contains the working directory.
    """
    file, here = pathlib.Path(path).resolve(), pathlib.Path().resolve()
    for callback in each_callback(callbacks):
        for folder in _folders_of(callback):
            is_within = file.is_relative_to(folder) and not here.is_relative_to(folder)
            if file.parent == folder or is_within:
                raise ValueError(
                    f"private_state={os.fspath(path)!r} is in the folder of "
                    f"{type(callback).__name__}, which may be shared or deleted. Put the "
                    f"file elsewhere: whoever reads it can remove the noise."
                )


def _folders_of(callback: Any) -> list[pathlib.Path]:
    """Returns the folders to which a callback writes."""
    folders = [getattr(callback, name, None) for name in ("backup_dir", "log_dir")]
    file = getattr(callback, "filepath", None)
    if isinstance(file, (str, os.PathLike)):
        # Only the part of the path before its first placeholder is used: "models" for
        # "models/{epoch}/weights.h5".
        folders.append(os.path.dirname(os.fspath(file).split("{", maxsplit=1)[0]))
    paths = [one for one in folders if isinstance(one, (str, os.PathLike))]
    return [pathlib.Path(one).resolve() for one in paths]
