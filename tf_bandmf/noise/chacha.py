"""ChaCha20, a stream cipher: no known method distinguishes its output from random bits.

The cipher uses only TensorFlow's integer arithmetic: additions, rotations and exclusive ors
of 32-bit words (RFC 8439, section 2.3). Therefore the words are the same on every device,
with and without XLA.
"""

from __future__ import annotations

import tensorflow as tf

from tf_bandmf.noise.philox import halves

# The constants of RFC 8439, section 2.3, are the ASCII text "expand 32-byte k".
_CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)
_DOUBLE_ROUNDS = 10
_COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
_DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))


def chacha20_blocks(step_key: tf.Tensor, number: tf.Tensor) -> list[tf.Tensor]:
    """Returns the 16 words of the keystream block for each block number.

    Args:
      step_key: uint64, shape [5]: the key in byte order, and the last two words of the
        nonce.
      number: block numbers, uint64, any shape. The lower half of a block number is the
        block counter of RFC 8439; the upper half is the first word of the nonce.

    Returns:
      16 uint32 tensors with the shape of `number`.
    """
    *key, third, fourth = (
        half for word in tf.unstack(step_key) for half in halves(word)
    )
    constants = [tf.constant(value, tf.uint32) for value in _CONSTANTS]
    initial = [*constants, *key, *halves(number), third, fourth]
    state = [tf.broadcast_to(word, tf.shape(number)) for word in initial]
    for _ in range(_DOUBLE_ROUNDS):
        for places in (*_COLUMNS, *_DIAGONALS):
            _quarter_round(state, *places)
    return [word + first for word, first in zip(state, initial)]


def chacha20(
    step_key: tf.Tensor, counter: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns words `4 counter, ..., 4 counter + 3` of the keystream for each counter.

    The function computes the whole block of 16 words for every counter. XLA fuses the
    computation into one loop, so the blocks are not stored.

    Args:
      step_key: uint64, shape [5], as in `chacha20_blocks`.
      counter: uint64, any shape.

    Returns:
      Four uint32 tensors of the counter's shape.
    """
    words = chacha20_blocks(
        step_key, tf.bitwise.right_shift(counter, tf.constant(2, tf.uint64))
    )
    quarter = tf.cast(tf.bitwise.bitwise_and(counter, 3), tf.int32)

    def chosen(i: int) -> tf.Tensor:
        first = tf.where(quarter < 1, words[i], words[4 + i])
        second = tf.where(quarter < 3, words[8 + i], words[12 + i])
        return tf.where(quarter < 2, first, second)

    return chosen(0), chosen(1), chosen(2), chosen(3)


def _quarter_round(state: list[tf.Tensor], a: int, b: int, c: int, d: int) -> None:
    state[a] = state[a] + state[b]
    state[d] = _rotated(state[d] ^ state[a], 16)
    state[c] = state[c] + state[d]
    state[b] = _rotated(state[b] ^ state[c], 12)
    state[a] = state[a] + state[b]
    state[d] = _rotated(state[d] ^ state[a], 8)
    state[c] = state[c] + state[d]
    state[b] = _rotated(state[b] ^ state[c], 7)


def _rotated(word: tf.Tensor, bits: int) -> tf.Tensor:
    left = tf.bitwise.left_shift(word, tf.constant(bits, tf.uint32))
    right = tf.bitwise.right_shift(word, tf.constant(32 - bits, tf.uint32))
    return tf.bitwise.bitwise_or(left, right)


def chacha20_in_a_row(
    step_key: tf.Tensor, counter: tf.Tensor, num_counters: int
) -> tf.Tensor:
    """Returns the words of `chacha20` for consecutive counters.

    Unlike `chacha20`, this function computes each block only once.

    Args:
      step_key: uint64, shape [5], as in `chacha20_blocks`.
      counter: the first counter, uint64 scalar.
      num_counters: number of counters.

    Returns:
      int32, shape [num_counters, 4].
    """
    first = tf.bitwise.right_shift(counter, tf.constant(2, tf.uint64))
    # One more block is needed because the first counter may lie within a block.
    numbers = first + tf.cast(tf.range(-(-num_counters // 4) + 1), tf.uint64)
    words = tf.stack(chacha20_blocks(step_key, numbers), axis=-1)
    skipped = tf.cast(tf.bitwise.bitwise_and(counter, 3), tf.int32)
    wanted = tf.slice(tf.reshape(words, [-1, 4]), [skipped, 0], [num_counters, 4])
    return tf.bitcast(wanted, tf.int32)
