"""Test data as a data set with an index, a `PyDataset` or a TFRecord file."""

import keras
import tensorflow as tf


def record_file(path, records, compression=""):
    """Writes records to a TFRecord file, and returns its path as text."""
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for record in records:
            writer.write(record)
    return str(path)


class ByIndex:
    """A data set with a length and access by index, like those of Grain and PyTorch."""

    def __init__(self, row, size):
        self.row, self.size = row, size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return self.row(index)


# Keras 2 does not have `PyDataset`.
class InBatches(getattr(keras.utils, "PyDataset", object)):
    """A `PyDataset` that divides a structure of arrays into batches of equal size."""

    def __init__(self, arrays, size):
        super().__init__()
        self.arrays, self.size = arrays, size

    def __len__(self):
        return -(-len(tf.nest.flatten(self.arrays)[0]) // self.size)

    def __getitem__(self, place):
        rows = slice(self.size * place, self.size * (place + 1))
        return tf.nest.map_structure(lambda array: array[rows], self.arrays)
