"""Connectionist temporal classification, of operations that end for all values.

TensorFlow's own has loops in functions of its first version, and a gradient by hand, which
no analysis here reads. This is the same function with the same gradient, by the recursion
of Graves et al. 2006 over time, in logarithms.

What tells that it broke: `tests/keras/compat/test_ctc.py`.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

# Logarithm of a probability that is 0; differences of it are finite.
_NEVER = -1e30


def ctc_loss(
    labels: Any,
    logits: Any,
    label_length: Any,
    logit_length: Any,
    blank_index: int,
) -> tf.Tensor:
    """The negative logarithm of the probability of labels, [B].

    Args:
      labels: classes, integers [B, U].
      logits: [B, T, C], not normalized.
      label_length: how many labels count, [B].
      logit_length: how many steps count, [B].
      blank_index: the class that is no label.

    Returns:
      Losses; infinite if there are more labels than steps can hold, NaN if a label is no
      class.
    """
    labels, logits = tf.convert_to_tensor(labels), tf.convert_to_tensor(logits)
    # Blanks before, between and after the labels: [B, 2 U + 1].
    blank = tf.fill(tf.shape(labels), tf.cast(blank_index, labels.dtype))
    states = tf.stack([labels, blank], axis=2)
    states = tf.reshape(states, [tf.shape(labels)[0], 2 * tf.shape(labels)[1]])
    states = tf.concat([tf.zeros_like(states[:, :1]) + blank_index, states], axis=1)
    place = tf.range(tf.shape(states)[1])[None]
    # A label may follow another one without a blank between, unless they are equal.
    before = tf.pad(states, [[0, 0], [2, 0]], constant_values=blank_index)[:, :-2]
    skips = tf.not_equal(states, before)
    normal = tf.reduce_logsumexp(logits, axis=2, keepdims=True)
    kept = tf.stop_gradient(normal)
    scores = tf.gather(logits - kept, states, axis=2, batch_dims=1)
    # A label that is the blank counts like any other, but TensorFlow's gradient by hand
    # leaves out the steps that are spent on it.
    is_label = tf.equal(place % 2, 1)[:, None] & tf.equal(states, blank_index)[:, None]
    scores = tf.where(is_label, tf.stop_gradient(scores), scores)
    never = tf.zeros_like(scores[:, 0]) + _NEVER
    first = tf.where(place < 2, scores[:, 0], never)
    length = tf.cast(logit_length, tf.int32)[:, None]

    def step(time: tf.Tensor, reached: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        one, two = (
            tf.pad(reached, [[0, 0], [n, 0]], constant_values=_NEVER)[:, :-n]
            for n in (1, 2)
        )
        two = tf.where(skips, two, never)
        found = _log_sum(reached, one, two) + scores[:, time]
        return time + 1, tf.where(time < length, found, reached)

    _, reached = tf.while_loop(
        lambda time, _: time < tf.shape(logits)[1], step, [1, first]
    )
    last = 2 * tf.cast(label_length, tf.int32)[:, None]
    ends = tf.equal(place, last) | tf.equal(place, last - 1)
    found = tf.reduce_logsumexp(tf.where(ends, reached, never), axis=1)
    # The gradient of what divides the scores: its value is in them.
    counts = tf.range(tf.shape(logits)[1])[None] < length
    divisor = tf.reduce_sum(tf.where(counts, (normal - kept)[:, :, 0], 0.0), axis=1)
    return tf.where(found < 0.5 * _NEVER, float("inf"), divisor - found)


def _log_sum(*terms: tf.Tensor) -> tf.Tensor:
    return tf.reduce_logsumexp(tf.stack(terms, axis=-1), axis=-1)
