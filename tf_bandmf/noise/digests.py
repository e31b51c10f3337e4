"""A keyed digest of a sum of gradients, which determines the key of the sum's noise.

The digest uses only plain integer operations, which XLA compiles into one pass.
Compiling takes up to half a second, so on a CPU only the digests of long vectors are
compiled. Two 32-bit numbers that are adjacent in memory form one 64-bit word. The
digest is computed in two steps.

The first step is the hash NH of Black, Halevi, Krawczyk, Krovetz and Rogaway ("UMAC:
fast and secure message authentication", Crypto 1999, theorem 4.2), for words `x` of a
block and keys `k`, with one 64-bit addition in place of NH's two 32-bit additions:

    NH(x) = sum_i low(x[i] + k[i] mod 2^64) high(x[i] + k[i] mod 2^64)  mod 2^64.

The values of two different blocks have any given difference with probability at most
2^-32 over the keys. Proof: let the blocks differ at i, fix all other keys, and let y =
x[i] + k[i], which is uniform; the other block has y' = y + d. If low(d) is not 0, then
low(y) and low(y') differ, and low(y) determines the carry: high(y') = high(y) + e mod
2^32, where e is fixed. If low(d) is 0, then low(y') = low(y), and high(y') = high(y) +
high(d) differs from high(y) whatever low(y) is. Either way, one factor is fixed and
differs between the two products, and the other factor is uniform in both, up to a fixed
shift: the theorem's proof shows that two such products have any given difference for at
most one of 2^32 values.

Each block is hashed to two values under separate keys, so the values of two different
blocks agree with probability at most 2^-64. The values of all blocks, and the leftover
words that do not fill a block, are hashed again with other keys, until few words remain.
Pieces of a vector are hashed separately, with the same keys. The remaining words of all
pieces form one last block, padded with zeros, which has its own keys.

In the second step, the four halves of the last block's values are hashed to two words
by `floor((k[0] + sum_i k[i] x[i] mod 2^64) / 2^32)`, whose values for two different
inputs are independent and uniform (Dietzfelbinger, "Universal hashing and k-wise
independent random variables via integer arithmetic", STACS 1996).

Therefore two different inputs of the same lengths, chosen without the key, have the
same digest with probability at most `COLLISION = (LEVELS + 1) 2^-64`, below 4e-19. If
the length varies, the last block includes the length. Released values depend on a digest
only through the random numbers of the generator whose key contains the digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Union

import numpy as np
import tensorflow as tf

from tf_bandmf.files.hidden import HiddenArray
from tf_bandmf.noise.devices import device_kind
from tf_bandmf.noise.shared import near_length, shared_function

# The version of the digest. Increase it if a change alters the digest of a sum, and
# therefore the noise.
VERSION = 3
# The number of hashing levels, including the level of the last block. This many levels
# suffice for 2^33 numbers, more than any model has.
LEVELS = 6
COLLISION = (LEVELS + 1) * 2.0**-64
# Each block of `_BLOCK` 64-bit words is hashed to `_VALUES` 64-bit words.
_BLOCK = 512
_VALUES = 2
# The number of products that are added elementwise before the sum along columns. XLA
# vectorizes at most 8.
_SUMMANDS = 8
_LEVEL_WORDS = 2 * _VALUES * _BLOCK
# On a CPU, XLA is not used to hash up to this many numbers, because hashing them without
# XLA takes less than 0.5 ms on one core.
_FEW = 1 << 16
# The size of the key of the second, final hash, in 32-bit numbers: five 64-bit numbers
# for each of the two words of the result.
_LAST_WORDS = 2 * 2 * (2 * _VALUES + 1)
KEY_SIZE = LEVELS * _LEVEL_WORDS + _LAST_WORDS


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
      int32, shape [KEY_SIZE] (49 kB). The key is as secret as `secret`.
    """
    stream = hashlib.shake_256(b"tf-bandmf digest" + secret + context.encode())
    words = stream.digest(4 * KEY_SIZE)
    return np.frombuffer(words, "<i4").view(HiddenArray)


def keyed_digest(
    key: tf.Tensor,
    value: Vector,
    more: tf.Tensor | None = None,
    *,
    compiles: bool | None = None,
) -> tf.Tensor:
    """Returns the digest of all bits of a vector and of a few integers.

    The digest does not include lengths, so all inputs under one key must have the same
    lengths.

    Args:
      key: from `digest_key`, or the same bits as 64-bit words.
      value: float32 vector of static shape [size], or a list of pieces of a vector,
        whose digest differs from that of the vector. A vector or piece of odd size is
        copied.
      more: the integers, int32, of static shape [count]. `count` plus the number of
        pieces must be at most 256.
      compiles: whether XLA compiles the computation. None means that XLA compiles it if
        that is faster.

    Returns:
      int32, shape [2].
    """
    pieces, numbers = _inputs(value, more)
    if compiles is None:
        size = 2 * sum(piece.shape[0] for piece in pieces)
        compiles = size > _FEW or device_kind() != "CPU"
    digest = _compiled_digest if compiles else _shared_digest
    return digest(_as_words(key), pieces, numbers)


def _inputs(value: Vector, more: tf.Tensor | None) -> tuple[list[Any], list[Any]]:
    """Returns the pieces and the remaining numbers, both as lists of uint64 tensors.

    In the pieces, two numbers form one word. The remaining numbers, which are `more`
    and the last number of each piece of odd size, have one word each.
    """
    given: Any = [value] if tf.is_tensor(value) else value
    pieces, numbers = [], [] if more is None else [_long(more)]
    for piece in given:
        if piece.shape[0] % 2:
            numbers.append(_long(piece[-1:]))
            piece = piece[:-1]
        pieces.append(_as_words(piece))
    return pieces, numbers


def digest_of_any_length(key: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
    """Returns the digest of a varying number of words, including their count.

    Args:
      key: from `digest_key`, or the same bits as 64-bit words.
      words: int32, shape [size].

    Returns:
      int32, shape [2].
    """
    counted = tf.concat([tf.shape(words), words], axis=0)
    size = tf.size(counted)
    padded = tf.pad(counted, [[0, near_length(size) - size]])
    lengths = _long(tf.shape(padded))
    return _digest_of_padded(_as_words(key), [_as_words(padded)], [lengths])


def _digest(
    key: tf.Tensor, pieces: list[tf.Tensor], numbers: list[tf.Tensor]
) -> tf.Tensor:
    """Returns the digest of 64-bit words, int32, shape [2].

    Args:
      key: the key from `digest_key`, uint64, shape [KEY_SIZE / 2].
      pieces: uint64 vectors. Each of them is first hashed to a few words.
      numbers: uint64 vectors that are part of the last block without being hashed
        before.
    """
    keys = tf.reshape(key[: -_LAST_WORDS // 2], [LEVELS, _VALUES, _BLOCK])
    # The maximum number of words to which each piece is hashed, so that all pieces
    # together fill at most half of the last block.
    most = _BLOCK // (2 * len(pieces))
    left = tf.concat([*(_hashed(keys, p, most) for p in pieces), *numbers], axis=0)
    if left.shape[0] > _BLOCK:
        raise ValueError("Too many numbers or pieces for one digest. Pass fewer.")
    halves = tf.stack(_halves(_hashed_blocks(keys[LEVELS - 1], left)), axis=1)
    key = tf.reshape(key[-_LAST_WORDS // 2 :], [2, 2 * _VALUES + 1])
    # The factor of the key's first number is 1, so this number is added unchanged.
    factors = tf.concat([tf.ones([1], tf.uint64), tf.reshape(halves, [-1])], axis=0)
    _, total = _halves(tf.reduce_sum(key * factors, axis=1))
    return tf.bitcast(tf.cast(total, tf.uint32), tf.int32)


_shared_digest = shared_function(_digest)
_compiled_digest = shared_function(_digest, jit_compile=True)
# Inputs of unknown length need a separate function: their program hashes at more
# levels, and TensorFlow would otherwise reuse it for inputs of known length.
_digest_of_padded = shared_function(_digest, jit_compile=True)


def _hashed(keys: tf.Tensor, words: tf.Tensor, most: int) -> tf.Tensor:
    """Hashes words repeatedly, until at most `most` words are left.

    If the number of words is unknown while tracing, two words are left.

    Args:
      keys: the keys of all levels, uint64, shape [LEVELS, 2, 512].
      words: uint64, shape [size].
      most: maximum number of words in the result.
    """
    for level in range(LEVELS - 1):
        size = words.shape[0]
        if size is not None and size <= most:
            return words
        words = _hashed_blocks(keys[level], words)
    return tf.ensure_shape(words, [_VALUES])


def _hashed_blocks(key: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
    """Returns two words for each block, then the words that do not fill a block.

    The words are reshaped to 512 rows, and each column is a block, because sums along
    columns are vectorized. An input shorter than a block is padded with zeros.

    Args:
      key: the key of one level, uint64, shape [2, 512].
      words: uint64, shape [size].
    """
    size, highest = words.shape[0], max
    is_large = size is None or 2 * size > _FEW
    # The size may be unknown while tracing; it is known when XLA compiles the function.
    if size is None:
        size, highest = tf.shape(words)[0], tf.maximum
    blocks = highest(size // _BLOCK, 1)
    rest = words[_BLOCK * blocks :]
    if not (isinstance(size, int) and size >= _BLOCK):
        words = tf.pad(words, [[0, highest(_BLOCK - size, 0)]])
    rows = tf.reshape(words[: _BLOCK * blocks], [_BLOCK, 1, blocks])
    keys = tf.transpose(key)[:, :, None]
    lower, upper = _halves(rows + keys)
    # The products of _SUMMANDS rows are added first, and only their sums are stored.
    parts = tf.split(lower * upper, _SUMMANDS if is_large else 1)
    values = tf.reduce_sum(tf.add_n(parts), axis=0)
    return tf.concat([tf.reshape(values, [-1]), rest], axis=0)


def _halves(words: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the lower and the upper 32 bits of each uint64 word."""
    upper = tf.bitwise.right_shift(words, tf.constant(32, tf.uint64))
    return words & tf.constant(2**32 - 1, tf.uint64), upper


def _as_words(numbers: tf.Tensor) -> tf.Tensor:
    """Views pairs of 32-bit numbers as uint64 words; leaves words unchanged."""
    if numbers.dtype.size < 8:
        numbers = tf.reshape(numbers, [-1, 2])
    return tf.bitcast(numbers, tf.uint64)


def _long(numbers: tf.Tensor) -> tf.Tensor:
    """Returns a uint64 for each float32 or int32, with its bits in the lower half."""
    return tf.cast(tf.bitcast(numbers, tf.uint32), tf.uint64)
