"""Samplers: the batches that the accountant analysed, and no others.

`Plan.batches` makes a `BatchSchedule` from arrays; from a `tf.data.Dataset` in its own
order (`StreamedExamples`); from examples on disk (`TFRecordExamples` for TFRecord
files, `cache_dataset` and `open_cache` for a `tf.data.Dataset`); or from examples that
a custom function fetches by index (`IndexedExamples`).
"""

from tf_bandmf.sampling.batches import BatchSchedule
from tf_bandmf.sampling.dataset_cache import cache_dataset, open_cache
from tf_bandmf.sampling.indexed import IndexedExamples
from tf_bandmf.sampling.streamed import StreamedExamples
from tf_bandmf.sampling.tfrecords import TFRecordExamples

__all__ = [
    "BatchSchedule",
    "IndexedExamples",
    "StreamedExamples",
    "TFRecordExamples",
    "cache_dataset",
    "open_cache",
]
