"""Writes a model in every file format that users share."""

import pickle

import tensorflow as tf


def write_model(model, folder):
    """Writes a model to a folder, in each format, with its optimizer if possible."""
    model.save(folder / "model.keras")
    model.save(folder / "model.h5")
    model.save_weights(folder / "model.weights.h5")
    model.export(folder / "export", verbose=False)
    tf.saved_model.save(model, str(folder / "saved_model"))
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    checkpoint.write(str(folder / "checkpoint"))
    (folder / "model.pickle").write_bytes(pickle.dumps(model))
