"""Examples of which a function fails: a damaged image, a text where a number should be.

Such an example becomes a row of zeros and weight 0. It takes its part in the run, adds
nothing to the sum, and does not end the run: that it ended would tell about the record
(invariants 5 and 18).
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_bandmf.sampling.sources import SAMPLE_WEIGHT

_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep


def said_of(error: BaseException) -> str:
    """The kind of an error and where it was raised; its text, if this library wrote it.

    Other texts may hold values of records, as may those of errors before it: whoever
    says this raises `from None`.
    """
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1:]
    # What is written in C has no frames: `int` raises in whoever calls it.
    if any(f.filename.startswith(_OURS) and "raise " in (f.line or "") for f in last):
        return f"{type(error).__name__}: {error}"
    own = [f for f in frames if not f.filename.startswith(_OURS)]
    callers = [f for f in own if "site-packages" not in f.filename] or own
    where = [f", line {f.lineno} of {os.path.basename(f.filename)}" for f in callers]
    return "".join([type(error).__name__, *where[-1:]])


def each_that_works(
    function: Callable[[Any], Any], rows: Any, spec: Any
) -> tuple[Any, tf.Tensor]:
    """Maps a function over rows, one by one, whatever it does with some of them.

    Args:
      function: of one row; in a graph. Errors of its operations are those of the row.
      rows: structure of tensors whose first dimension is N.
      spec: structure of specs of what it returns, of static shapes.

    Returns:
      Its results, with zeros where it failed, and where it did not, bool, shape [N].
    """
    count = tf.shape(tf.nest.flatten(rows)[0], out_type=tf.int64)[0]
    found = tf.data.Dataset.from_tensor_slices((tf.range(count), rows)).map(
        lambda place, row: (place, function(row)), num_parallel_calls=tf.data.AUTOTUNE
    )
    found = found.ignore_errors().concatenate(
        tf.data.Dataset.from_tensors((count, _nothing(spec)))
    )
    places, results = found.batch(count + 1).get_single_element()
    last = tf.shape(places, out_type=tf.int64)[0] - 1
    # Where in the results each row is; the last one is nobody's.
    order = tf.scatter_nd(places[:, None], tf.range(last + 1) - last, [count + 1])
    order = order[:count] + last
    works = tf.scatter_nd(places[:, None], tf.ones_like(places), [count + 1])[:count]
    results = tf.nest.map_structure(
        lambda t, s: tf.ensure_shape(tf.gather(t, order), [None, *s.shape]),
        results,
        spec,
    )
    return results, works > 0


def with_weights(content: dict[str, Any], works: tf.Tensor) -> dict[str, Any]:
    """Rows with the weight 0 where they are none, as float32."""
    weights = tf.cast(works, tf.float32)
    if SAMPLE_WEIGHT not in content:
        return {**content, SAMPLE_WEIGHT: weights}

    def zeroed(own: tf.Tensor) -> tf.Tensor:
        own = tf.cast(own, tf.float32)
        shaped = tf.reshape(works, [-1, *([1] * (own.shape.rank - 1))])
        return tf.where(shaped, own, tf.zeros_like(own))

    own = tf.nest.map_structure(zeroed, content[SAMPLE_WEIGHT])
    return {**content, SAMPLE_WEIGHT: own}


def _nothing(spec: Any) -> Any:
    return tf.nest.map_structure(lambda s: tf.zeros(s.shape, s.dtype), spec)
