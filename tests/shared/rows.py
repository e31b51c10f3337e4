"""Examples that are read by index, and files of records."""

import tensorflow as tf


def record_file(path, records, compression=""):
    """The path of a TFRecord file, as text, once it has these records."""
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for record in records:
            writer.write(record)
    return str(path)


class ByIndex:
    """As data sets of Grain and PyTorch: a function of the index, and their number."""

    def __init__(self, row, size):
        self.row, self.size = row, size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return self.row(index)
