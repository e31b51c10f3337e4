"""Examples that are read by index, and files of records."""

import tensorflow as tf


def record_file(path, records, compression=""):
    """Writes records to a TFRecord file, and returns its path as text."""
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for record in records:
            writer.write(record)
    return str(path)


class ByIndex:
    """A data set like those of Grain and PyTorch: a function of the index, and a length."""

    def __init__(self, row, size):
        self.row, self.size = row, size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return self.row(index)
