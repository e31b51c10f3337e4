"""A keyed digest of the sum that noise is added to, which becomes part of the noise's key.

In plain integer operations, of which XLA makes one pass. It takes up to half a second to
compile it, so that on a CPU only the first level of long vectors is compiled. Two steps:

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
from typing import Callable

import numpy as np
import tensorflow as tf

from tf_bandmf.files.hidden import HiddenArray
from tf_bandmf.noise.devices import device_kind, traced_under_xla

# Blocks within blocks: enough for 1024 * 256^4 words, more than anything has.
LEVELS = 5
COLLISION = (LEVELS + 1) * 2.0**-64
_BLOCK = 1024
_HALF = _BLOCK // 2
_VALUES = 2
_SUMMANDS = 4  # products that are added up before the sum along columns
_LEVEL_WORDS = _VALUES * _BLOCK
# Of words whose number varies: blocks that are hashed to four words at once, by two
# levels; and blocks of those words.
_PART, _PART_LEVELS, _LAST_BLOCKS = 32 * _BLOCK, 2, 16
# Words of a level that takes below 0.4 ms on one core without XLA.
_FEW_WORDS = 1 << 16
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
    return _digest(key, value, lambda _: _hashed_blocks)


# From the key of a level and words to words, uint32.
_Level = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def _digest(
    key: tf.Tensor, value: tf.Tensor, level_for: Callable[[int], _Level]
) -> tf.Tensor:
    """The digest, each of whose levels is made by the function for its number of words."""
    key = tf.bitcast(key, tf.uint32)
    words = tf.bitcast(value, tf.uint32)
    for level in range(LEVELS):
        words = level_for(words.shape[0])(_key_of(key, level), words)
        if words.shape[0] == 2 * _VALUES:
            return tf.bitcast(_last(key[-_LAST_WORDS:], words), tf.int32)
    raise ValueError(f"{value.shape[0]} numbers are more than a digest takes.")


def _key_of(key: tf.Tensor, level: int) -> tf.Tensor:
    return key[level * _LEVEL_WORDS : (level + 1) * _LEVEL_WORDS]


def digest_of_any_length(key: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
    """The digest of words whose number varies, which is part of what is digested.

    In parts of one size, for XLA would compile another program for each number.

    Args:
      key: see `digest_key`; for no other function.
      words: int32, shape [size], of at most 2^27 - 1 words: 512 MB.

    Returns:
      int32, shape [2].

    Raises:
      InvalidArgumentError: if there are more words.
    """
    words = tf.concat([tf.shape(words), words], axis=0)
    missing = -tf.size(words) % _PART
    words = tf.reshape(tf.pad(words, [[0, missing]]), [-1, _PART])
    count = tf.shape(words)[0]
    values = tf.TensorArray(tf.int32, count, element_shape=[2 * _VALUES])
    _, values = tf.while_loop(
        lambda i, _: i < count,
        lambda i, found: (i + 1, found.write(i, _levels_of_part(key, words[i]))),
        (tf.constant(0), values),
        parallel_iterations=1,
    )
    found = tf.reshape(values.stack(), [-1])
    padded = tf.pad(found, [[0, _LAST_BLOCKS * _BLOCK - tf.size(found)]])
    return _last_levels(key, tf.ensure_shape(padded, [_LAST_BLOCKS * _BLOCK]))


@functools.partial(tf.function, jit_compile=True, autograph=False)
def _levels_of_part(key: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
    """Four words from a part, int32."""
    return tf.bitcast(_hashed(key, words, range(_PART_LEVELS)), tf.int32)


@functools.partial(tf.function, jit_compile=True, autograph=False)
def _last_levels(key: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
    words = _hashed(key, words, range(_PART_LEVELS, LEVELS))
    return tf.bitcast(_last(tf.bitcast(key[-_LAST_WORDS:], tf.uint32), words), tf.int32)


def _hashed(key: tf.Tensor, words: tf.Tensor, levels: range) -> tf.Tensor:
    """Words after some levels, uint32."""
    key, words = tf.bitcast(key, tf.uint32), tf.bitcast(words, tf.uint32)
    for level in levels:
        words = _hashed_blocks(_key_of(key, level), words)
    return words


def keyed_digest(key: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """`plain_digest`, compiled by XLA where that pays."""
    if device_kind() == "CPU" and not traced_under_xla():
        return _host_digest(key, value)
    return _compiled_digest(key, value)


_compiled_digest = tf.function(plain_digest, jit_compile=True, autograph=False)


@functools.partial(tf.function, autograph=False)
def _host_digest(key: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    def level_for(size: int) -> _Level:
        return _plain_blocks if size <= _FEW_WORDS else _compiled_blocks

    return _digest(key, value, level_for)


def _plain_blocks(key: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
    """`_hashed_blocks`, in few operations; the number of words may vary."""
    size = words.shape[0]
    missing = -(tf.size(words) if size is None else size) % _BLOCK
    words = tf.pad(tf.bitcast(words, tf.int32), [[0, missing]])
    rows = tf.reshape(tf.bitcast(words, tf.uint32), [1, 2, _HALF, -1])
    pairs = _long(rows + tf.reshape(key, [_VALUES, 2, _HALF, 1]))
    first, second = tf.unstack(pairs, axis=1)
    values = tf.reduce_sum(first * second, axis=1)
    return tf.reshape(tf.bitcast(tf.transpose(values), tf.uint32), [-1])


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


_compiled_blocks = tf.function(_hashed_blocks, jit_compile=True, autograph=False)


def _last(key: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
    """Two words from four."""
    keys = tf.reshape(key, [2, 2 * _VALUES + 1, 2])
    low, high = tf.unstack(_long(keys), axis=2)
    long = low + tf.bitwise.left_shift(high, tf.constant(32, tf.uint64))
    # The first number of the key is added.
    factors = tf.concat([tf.constant([1], tf.uint64), _long(words)], axis=0)
    total = tf.reduce_sum(long * factors, axis=1)
    return tf.cast(_upper(total), tf.uint32)


def _long(words: tf.Tensor) -> tf.Tensor:
    return tf.cast(words, tf.uint64)


def _upper(words: tf.Tensor) -> tf.Tensor:
    return tf.bitwise.right_shift(words, tf.constant(32, tf.uint64))
