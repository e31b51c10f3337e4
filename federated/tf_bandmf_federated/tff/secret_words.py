"""Random 64-bit words from the operating system, read while the graph runs.

TFF traces `initialize` once, so random numbers drawn in Python would become constants
of the graph and be the same in every execution. TensorFlow does not document how its
own random generators are seeded. Therefore the graph reads the operating system's
random device in each execution.
"""

from __future__ import annotations

import math

import tensorflow as tf

_DEVICE = "/dev/urandom"
# The random device is read in blocks of this many bytes.
_BLOCK = 4096
# The sum (mod 256) of this many bytes gives one random byte. The bytes are read as text
# lines, so they are never \n or \r. Nevertheless, the sum of four such bytes is uniform
# up to a relative error of (2 / 254)^4 = 4e-9.
_SUMMANDS = 4


def fresh_words(shape: list[int]) -> tf.Tensor:
    """Returns independent uniform uint64 numbers, drawn at each execution of the graph.

    Raises:
      FailedPreconditionError, NotFoundError: at run time, if there is no random device (on
        systems other than Linux and macOS).
    """
    count = math.prod(shape) * 8 * _SUMMANDS
    # A random line has a mean length of 256 bytes, so these lines contain more than
    # enough bytes, except with a probability below 1e-30.
    num_lines = count // 128 + 64
    lines = tf.data.TextLineDataset(_DEVICE, buffer_size=_BLOCK)
    text = tf.strings.reduce_join(lines.batch(num_lines).take(1).get_single_element())
    enough = tf.debugging.assert_greater_equal(
        tf.strings.length(text), count, "The random device returned too few bytes."
    )
    with tf.control_dependencies([enough]):
        raw = tf.io.decode_raw(tf.strings.substr(text, 0, count), tf.uint8)
    summands = tf.cast(tf.reshape(raw, [*shape, 8, _SUMMANDS]), tf.int32)
    octets = tf.cast(tf.reduce_sum(summands, axis=-1) % 256, tf.uint8)
    return tf.bitcast(octets, tf.uint64)
