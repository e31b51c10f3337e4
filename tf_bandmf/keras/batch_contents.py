"""What a batch holds: of a schedule, or of a stream that the caller makes."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.sampling import batches as batches_lib


def is_stream(x: Any) -> bool:
    """Whether the data come batch by batch, in an order of their own."""
    return isinstance(x, tf.data.Dataset) or hasattr(x, "__next__")


def unwrap_single(data: Any) -> Any:
    """A scheduled batch that `train_on_batch` put into a tuple."""
    if isinstance(data, tuple) and batches_lib.is_scheduled_batch(data[0]):
        if any(item is not None for item in data[1:]):
            raise ValueError("A scheduled batch holds its targets and weights itself.")
        return data[0]
    return data


def contents(data: Any) -> tuple[Any, Any, Any]:
    """Inputs, targets and sample weights of a batch of either kind."""
    data = unwrap_single(data)
    if batches_lib.is_scheduled_batch(data):
        keys = (batches_lib.INPUTS, batches_lib.TARGETS, batches_lib.SAMPLE_WEIGHT)
        inputs, targets, weights = (data.get(key) for key in keys)
        return inputs, targets, weights
    return keras.utils.unpack_x_y_sample_weight(data)
