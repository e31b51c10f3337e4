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

_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep


def said_of(error: BaseException) -> str:
    """The kind of an error and where it was raised; its text, if this library wrote it.

    Other texts may hold values of records, as may those of errors before it: whoever
    says this raises `from None`.
    """
    frames = traceback.extract_tb(error.__traceback__)
    # What is written in C has no frames: `int` raises in whoever calls it.
    last = frames[-1]
    if last.filename.startswith(_OURS) and "raise " in (last.line or ""):
        return f"{type(error).__name__}: {error}"
    theirs = [f for f in frames if not f.filename.startswith(_OURS)]
    callers = [f for f in theirs if "site-packages" not in f.filename] or theirs
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
    blank = tf.nest.map_structure(lambda s: tf.zeros(s.shape, s.dtype), spec)
    numbered = tf.data.Dataset.from_tensor_slices((tf.range(count), rows)).map(
        lambda place, row: (place, function(row)), num_parallel_calls=tf.data.AUTOTUNE
    )
    # One more, which always works, so that there is a batch.
    ended = numbered.ignore_errors().concatenate(
        tf.data.Dataset.from_tensors((count, blank))
    )
    places, results = ended.batch(count + 1).get_single_element()
    # Where in the results each row is; nothing's is the last one.
    last = tf.shape(places)[0] - 1
    order = tf.scatter_nd(places[:, None], tf.range(last + 1) - last, [count + 1])
    order = order[:count] + last
    results = tf.nest.map_structure(
        lambda t, s: tf.ensure_shape(tf.gather(t, order), [None, *s.shape]),
        results,
        spec,
    )
    return results, order < last
