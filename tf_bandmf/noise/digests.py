"""A keyed digest of a gradient sum; the key of the sum's noise depends on the digest.

The digest uses only integer operations. On a CPU, it is computed by matrix products and
without XLA, because XLA would take half a second to compile it. On other devices, XLA
fuses the operations into loops.

The bits of the numbers are 32-bit integers `x`. They are cut into blocks, and each block
is hashed to two values, each with its own 64-bit keys `k`:

    floor((k[0] + sum_i k[i] x[i] mod 2^64) / 2^32).

The values of two different blocks are independent and uniform (Dietzfelbinger,
"Universal hashing and k-wise independent random variables via integer arithmetic",
STACS 1996), so two blocks agree in both values with probability 2^-64. The values of
all blocks are hashed again with other keys, until few remain. Pieces of a vector are
hashed separately, with the same keys. The remaining values of all pieces form one last
block. This block has its own keys, and its two values are the digest.

Therefore two different inputs of the same lengths, chosen without the key, have the
same digest with probability at most `COLLISION = LEVELS * 2^-64`, below 3e-19. If the
length varies, the last block includes the length. A digest influences released values
only as a part of the key of a random number generator.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Union

import numpy as np
import tensorflow as tf

from tf_bandmf.files.hidden import HiddenArray
from tf_bandmf.noise.devices import device_kind, traced_under_xla
from tf_bandmf.noise.shared import near_length, shared_function

# The version of the digest. Increase it if a change alters the digest of a sum, and
# therefore the noise.
VERSION = 4
# The number of hashing levels, including the level of the last block. This many levels
# suffice for 2^33 numbers, more than any model has.
LEVELS = 5
COLLISION = LEVELS * 2.0**-64
# Each block of `BLOCK` numbers is hashed to `_VALUES` numbers. Inputs are padded with zeros
# to whole blocks.
BLOCK = 512
_VALUES = 2
# The size of the key in 32-bit numbers. For each level and each of its `_VALUES`
# values, the key has `1 + BLOCK` numbers of 64 bits: one summand and `BLOCK` factors.
KEY_SIZE = 2 * LEVELS * (1 + BLOCK) * _VALUES


# A float32 vector of static shape [size], or a list of consecutive pieces of a vector.
# The digest of the pieces differs from the digest of the whole vector.
Vector = Union[tf.Tensor, Sequence[tf.Tensor]]


def digest_key(secret: bytes, context: str) -> np.ndarray:
    """Derives the key of the digests from a secret with SHAKE-256 (FIPS 202).

    Args:
      secret: 32 bytes.
      context: describes everything that the noise depends on, apart from the secret and
        the sums.

    Returns:
      int32, shape [KEY_SIZE] (41 kB). The key is as secret as `secret`.
    """
    stream = hashlib.shake_256(b"tf-bandmf digest" + secret + context.encode())
    words = stream.digest(4 * KEY_SIZE)
    return np.frombuffer(words, "<i4").view(HiddenArray)


def keyed_digest(
    key: tf.Tensor, value: Vector, more: tf.Tensor | None = None
) -> tf.Tensor:
    """Returns the digest of all bits of a vector and of a few integers.

    The digest does not include lengths, so all inputs under one key must have the same
    lengths.

    Args:
      key: from `digest_key`, or the same bits as 64-bit words.
      value: float32 vector of static shape [size], or a list of pieces of a vector.
        The digest of the pieces differs from that of the whole vector. Padding may copy
        a vector or piece whose size is not a multiple of `BLOCK`.
      more: the integers, int32, of static shape [count]. `count` plus the number of
        pieces must be at most 256.

    Returns:
      int32, shape [2].
    """
    pieces = [value] if tf.is_tensor(value) else list(value)
    digest = _digest if device_kind() == "CPU" else _compiled_digest
    # Up to 128 pieces together fill at most half of the last block.
    most = BLOCK // (2 * len(pieces))
    return digest(key, pieces, [] if more is None else more, most)


def digest_of_any_length(key: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
    """Returns the digest of words and of the number of words, which may vary.

    Args:
      key: from `digest_key`, or the same bits as 64-bit words.
      words: int32, shape [size].

    Returns:
      int32, shape [2].
    """
    size = tf.shape(words)
    padded = tf.pad(words, [[0, near_length(size[0]) - size[0]]])
    digest = _digest if device_kind() == "CPU" else _compiled_digest
    # The digest must be the same whether or not the length is known while tracing, so all
    # lengths are hashed at all levels.
    return digest(key, [padded], size, 0)


def _digest(
    key: tf.Tensor, pieces: list[tf.Tensor], more: tf.Tensor, most: int
) -> tf.Tensor:
    """Returns the digest of vectors of 32-bit numbers, int32, shape [2].

    Args:
      key: from `digest_key`, or the same bits as 64-bit words.
      pieces: vectors, each of which is first hashed to a few numbers.
      more: int32 numbers that go directly into the last block.
      most: each piece is hashed until at most this many numbers remain; see `_hashed`.
    """
    words = key if key.dtype.size == 8 else tf.reshape(key, [-1, 2])
    shape = [LEVELS, 1 + BLOCK, _VALUES]
    keys = tf.unstack(tf.reshape(tf.bitcast(words, tf.int64), shape))
    left = [_hashed(keys, _long(piece), most) for piece in pieces]
    last = tf.concat([*left, _long(more)], axis=0)
    if last.shape[0] > BLOCK:
        raise ValueError("Pass at most 256 pieces and integers together to a digest.")
    return tf.cast(_hashed_blocks(keys[-1], last), tf.int32)


_compiled_digest = shared_function(_digest, jit_compile=True)


def _hashed(keys: Sequence[tf.Tensor], numbers: tf.Tensor, most: int) -> tf.Tensor:
    """Hashes numbers until at most `most` numbers remain, and returns these numbers.

    All levels are used if `most` is less than 2, or if the length of `numbers` is
    unknown while tracing. Then two numbers remain.

    Args:
      keys: the key of each level, int64, shape [1 + BLOCK, 2].
      numbers: int64, shape [size].
      most: hashing ends when at most this many numbers remain.
    """
    for level in range(LEVELS - 1):
        size = numbers.shape[0]
        if size is not None and size <= most:
            return numbers
        numbers = _hashed_blocks(keys[level], numbers)
    return tf.ensure_shape(numbers, [_VALUES])


def _hashed_blocks(key: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    """Returns the two values of each block, int64 in the range of int32.

    Args:
      key: the key of one level, int64, shape [1 + BLOCK, 2].
      numbers: int64 in the range of int32, shape [size].
    """
    size = numbers.shape[0]
    if size is None:
        size = tf.shape(numbers)[0]
    if not isinstance(size, int) or size % BLOCK or not size:
        highest = max if isinstance(size, int) else tf.maximum
        whole = highest((size + BLOCK - 1) // BLOCK, 1) * BLOCK
        numbers = tf.pad(numbers, [[0, whole - size]])
    blocks = tf.reshape(numbers, [-1, BLOCK])
    added, factors = tf.split(key, [1, BLOCK])
    if traced_under_xla():
        # XLA has no fast matrix product of integers, but fuses this sum into one loop.
        sums = tf.reduce_sum(blocks[:, None] * tf.transpose(factors), axis=-1)
    else:
        sums = tf.raw_ops.Einsum(inputs=[blocks, factors], equation="ij,jk->ik")
    upper = tf.bitwise.right_shift(added + sums, tf.constant(32, tf.int64))
    return tf.reshape(upper, [-1])


def _long(numbers: tf.Tensor) -> tf.Tensor:
    """Reads the bits of 32-bit numbers as int32, and casts them to int64."""
    return tf.cast(tf.bitcast(numbers, tf.int32), tf.int64)
