"""A keyed digest of the sum that noise is added to, which becomes part of the noise's key.

In plain integer operations, of which XLA makes one pass. Two steps:

NH of Black, Halevi, Krawczyk, Krovetz and Rogaway ("UMAC: fast and secure message
authentication", Crypto 1999, theorem 4.2), for words `x` of a block in pairs, and keys `k`,

    NH(x) = sum_i (x[i] + k[i] mod 2^32) (x[i + B/2] + k[i + B/2] mod 2^32)  mod 2^64.

Two different blocks have one value with probability at most 2^-32 over the keys; two
values, with keys of their own, are both equal with at most 2^-64. Blocks are hashed to
four words each, those again with other keys, until one block is left. The four words of
that are hashed to two by `floor((k[0] + sum_i k[i] x[i] mod 2^64) / 2^32)`, whose values
for two different inputs are independent and uniform (Dietzfelbinger, "Universal hashing
and k-wise independent random variables via integer arithmetic", STACS 1996).

So two different inputs of one length, chosen without the key, have one digest with
probability at most `COLLISION = (LEVELS + 1) 2^-64`, below 4e-19. Nothing that is released
tells of digests but through a generator whose key they are part of.
"""

from __future__ import annotations

import functools
import hashlib

import numpy as np
import tensorflow as tf

from tf_bandmf.files.hidden import HiddenArray

# Blocks within blocks: enough for 1024 * 256^4 words, more than anything has.
LEVELS = 5
COLLISION = (LEVELS + 1) * 2.0**-64
_BLOCK = 1024
_HALF = _BLOCK // 2
_VALUES = 2
_SUMMANDS = 4  # products that are added up before the sum along columns
_LEVEL_WORDS = _VALUES * _BLOCK
# Of words whose number varies: levels whose sizes do, and blocks of the next level.
_PLAIN_LEVELS, _LAST_BLOCKS = 2, 16
# The key of the last step: 64 bits for each of five numbers, for two words of the result.
_LAST_WORDS = 2 * 2 * (2 * _VALUES + 1)
KEY_SIZE = LEVELS * _LEVEL_WORDS + _LAST_WORDS


def digest_key(secret: bytes, context: str) -> np.ndarray:
    """The key of `plain_digest`, by SHAKE-256 (FIPS 202).

    Args:
      secret: 32 bytes.
      context: what else the noise depends on, beside the secret and the sums.

    Returns:
      int32, shape [words]: 40 kB. As secret as what it is made from.
    """
    stream = hashlib.shake_256(b"tf-bandmf digest" + secret + context.encode())
    words = stream.digest(4 * KEY_SIZE)
    return np.frombuffer(words, "<i4").view(HiddenArray)


def plain_digest(key: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """The digest of all bits of a vector.

    Lengths are not told apart: inputs of one key have one length.

    Args:
      key: see `digest_key`.
      value: float32, of static shape [size].

    Returns:
      int32, shape [2].
    """
    key = tf.bitcast(key, tf.uint32)
    words = tf.bitcast(value, tf.uint32)
    for level in range(LEVELS):
        own = key[level * _LEVEL_WORDS : (level + 1) * _LEVEL_WORDS]
        words = _hashed_blocks(own, words)
        if words.shape[0] == 2 * _VALUES:
            return tf.bitcast(_last(key[-_LAST_WORDS:], words), tf.int32)
    raise ValueError(f"{value.shape[0]} numbers are more than a digest takes.")


def digest_of_any_length(key: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
    """The digest of words whose number varies, which is part of what is digested.

    The first levels in plain operations, for XLA would compile them again for each number.

    Args:
      key: see `digest_key`; for no other function.
      words: int32, shape [size], of at most 2^30 words: 4 GB.

    Returns:
      int32, shape [2].

    Raises:
      InvalidArgumentError: if there are more words.
    """
    words = tf.concat([tf.shape(words), words], axis=0)
    plain = tf.bitcast(key[: _PLAIN_LEVELS * _LEVEL_WORDS], tf.uint32)
    keys = tf.reshape(plain, [_PLAIN_LEVELS, _VALUES, 2, _HALF, 1])
    for own in tf.unstack(tf.transpose(keys, [0, 2, 1, 3, 4])):
        missing = -tf.size(words) % _BLOCK
        padded = tf.bitcast(tf.pad(words, [[0, missing]]), tf.uint32)
        pairs = tf.reshape(padded, [2, 1, _HALF, -1])
        first, second = tf.unstack(_long(pairs + own))
        values = tf.reduce_sum(first * second, axis=1)
        words = tf.reshape(tf.bitcast(tf.transpose(values), tf.int32), [-1])
    padded = tf.pad(words, [[0, _LAST_BLOCKS * _BLOCK - tf.size(words)]])
    return _last_levels(key, tf.ensure_shape(padded, [_LAST_BLOCKS * _BLOCK]))


@functools.partial(tf.function, jit_compile=True, autograph=False)
def _last_levels(key: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
    key, words = tf.bitcast(key, tf.uint32), tf.bitcast(words, tf.uint32)
    for level in range(_PLAIN_LEVELS, LEVELS):
        words = _hashed_blocks(
            key[level * _LEVEL_WORDS : (level + 1) * _LEVEL_WORDS], words
        )
    return tf.bitcast(_last(key[-_LAST_WORDS:], words), tf.int32)


keyed_digest = tf.function(plain_digest, jit_compile=True, autograph=False)
"""`plain_digest`, compiled by XLA."""


def _hashed_blocks(key: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
    """Four words for each block, uint32, shape [4 blocks], of a static shape [size].

    The words of a block stand in a column of the rows that the vector is cut into, zeros
    after its end: sums along columns are vectorized. XLA would copy the vector to add the
    zeros, so the last rows are taken by themselves.
    """
    size = words.shape[0]
    blocks = -(-size // _BLOCK)
    whole = max(size // blocks - _HALF, 0) // _SUMMANDS * _SUMMANDS

    def rows(begin: int, end: int) -> tf.Tensor:
        found = words[begin * blocks : end * blocks]
        missing = (end - begin) * blocks - found.shape[0]
        padded = tf.pad(found, [[0, missing]]) if missing else found
        return tf.reshape(padded, [end - begin, 1, blocks])

    def products(begin: int, end: int) -> tf.Tensor:
        pairs = rows(begin, end), rows(_HALF + begin, _HALF + end)
        first, second = (
            _long(part + keys[half, begin:end]) for half, part in enumerate(pairs)
        )
        return first * second

    keys = tf.transpose(tf.reshape(key, [_VALUES, 2, _HALF, 1]), [1, 2, 0, 3])
    total = tf.reduce_sum(products(whole, _HALF), axis=0)
    if whole:
        step = whole // _SUMMANDS
        parts = [products(i * step, (i + 1) * step) for i in range(_SUMMANDS)]
        total += tf.reduce_sum(tf.add_n(parts), axis=0)
    values = tf.unstack(total)
    halves = [tf.cast(half, tf.uint32) for v in values for half in (v, _upper(v))]
    return tf.reshape(tf.stack(halves, axis=1), [-1])


def _last(key: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
    """Two words from four."""
    keys = tf.reshape(key, [2, 2 * _VALUES + 1, 2])
    long = _long(keys[..., 0]) + tf.bitwise.left_shift(
        _long(keys[..., 1]), tf.constant(32, tf.uint64)
    )
    total = long[:, 0] + tf.reduce_sum(long[:, 1:] * _long(words), axis=1)
    return tf.cast(_upper(total), tf.uint32)


def _long(words: tf.Tensor) -> tf.Tensor:
    return tf.cast(words, tf.uint64)


def _upper(words: tf.Tensor) -> tf.Tensor:
    return tf.bitwise.right_shift(words, tf.constant(32, tf.uint64))
