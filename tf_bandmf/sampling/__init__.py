"""Samplers, which make exactly the batches that the accountant analyzed.

`Plan.batches` makes a `BatchSchedule` from arrays, from a `tf.data.Dataset` in its own
order, from TFRecord files (`TFRecordExamples`), or from any object that has a length and
returns examples by index.
"""

from tf_bandmf.sampling.batches import BatchSchedule as BatchSchedule
from tf_bandmf.sampling.sources import TFRecordExamples as TFRecordExamples
