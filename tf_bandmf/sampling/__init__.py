"""Samplers: the batches that the accountant analysed, and no others.

`Plan.batches` makes a `BatchSchedule` from arrays; from a `tf.data.Dataset` in its own
order; from TFRecord files, by `TFRecordExamples`; or from anything that has a length and
gives examples by index.
"""

from tf_bandmf.sampling.batches import BatchSchedule
from tf_bandmf.sampling.sources import TFRecordExamples

__all__ = ["BatchSchedule", "TFRecordExamples"]
