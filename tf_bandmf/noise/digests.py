"""A keyed digest of the sum that noise is added to, which becomes part of the noise's key.

In plain integer operations, of which XLA makes one pass. It takes up to half a second to
compile it, so that on a CPU only that of long vectors is compiled. Two numbers of 32 bits
at once are a word of 64 bits; what remains of a vector is filled up with zeros. Two steps:

NH of Black, Halevi, Krawczyk, Krovetz and Rogaway ("UMAC: fast and secure message
authentication", Crypto 1999, theorem 4.2), for words `x` of a block, with keys `k`, whose
sums are one of 64 bits instead of two of 32:

    NH(x) = sum_i low(x[i] + k[i] mod 2^64) high(x[i] + k[i] mod 2^64)  mod 2^64.

Two different blocks have values with any one difference with probability at most 2^-32
over the keys. For let them differ at i, the other keys be given, and y = x[i] + k[i],
which is uniform; the other block has y' = y + d. If low(d) is not 0, then low(y) and
low(y') differ, and given low(y) so is what is carried: high(y') = high(y) + e mod 2^32,
with e given. If low(d) is 0, then low(y') = low(y), and high(y') = high(y) + high(d),
which differ whatever low(y) is. Either way one factor of the two products is given and
differs, the other one is uniform and moved by a given number: that is what the theorem's
proof shows to have any one difference for at most one of 2^32 values. Two values, with
keys of their own, are both equal with at most 2^-64.

Blocks are hashed to two values each, those, and the words that make no block, again with
other keys, until one block is left. The four halves of its values are hashed to two words
by `floor((k[0] + sum_i k[i] x[i] mod 2^64) / 2^32)`, whose values for two different inputs
are independent and uniform (Dietzfelbinger, "Universal hashing and k-wise independent
random variables via integer arithmetic", STACS 1996).

So two different inputs of one length, chosen without the key, have one digest with
probability at most `COLLISION = (LEVELS + 1) 2^-64`, below 4e-19. Nothing that is released
tells of digests but through a generator whose key they are part of.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_bandmf.files.hidden import HiddenArray
from tf_bandmf.noise.devices import device_kind
from tf_bandmf.noise.shared import NOT_INLINED, shared_function

# Raised when the same sum gets another digest, and hence other noise.
VERSION = 2
# Blocks within blocks: enough for 2^33 numbers, more than anything has.
LEVELS = 5
COLLISION = (LEVELS + 1) * 2.0**-64
_BLOCK = 512  # words of 64 bits
_VALUES = 2
# Products that are added up before the sum along columns. XLA vectorizes no more than 8.
_SUMMANDS = 8
# Rows of a sum along columns that XLA makes two vectorized passes of; not of fewer.
_TREE = 33
_LEVEL_WORDS = 2 * _VALUES * _BLOCK
# Of numbers whose count varies: how many are hashed to four at once, by two levels; and
# blocks of those four.
_PART, _PART_LEVELS, _LAST_BLOCKS = 64 * _BLOCK, 2, 16
# Numbers whose digest takes below 0.5 ms on one core without XLA.
_FEW = 1 << 16
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


def plain_digest(
    key: tf.Tensor, value: tf.Tensor, more: tf.Tensor | None = None
) -> tf.Tensor:
    """The digest of all bits of a vector, and of a few numbers more.

    Lengths are not told apart: inputs of one key have one length.

    Args:
      key: see `digest_key`.
      value: float32, of static shape [size].
      more: int32, of static shape [count]; each takes the time of two of `value`.

    Returns:
      int32, shape [2].
    """
    even = value.shape[0] // 2 * 2
    key = _paired(key)
    return _digest(key, _paired(value[:even]), *_after(value[even:], more))


def _after(last: tf.Tensor, more: tf.Tensor | None) -> list[tf.Tensor]:
    """What comes after the words of two numbers each."""
    return [last] if more is None else [last, more]


def _paired(numbers: tf.Tensor) -> tf.Tensor:
    """Words of two numbers each, uint64."""
    low, high = tf.unstack(_long(tf.reshape(numbers, [-1, 2])), axis=1)
    return low | _moved(high)


def _digest(
    key: tf.Tensor, words: tf.Tensor, *after: tf.Tensor, begin: int = 0
) -> tf.Tensor:
    """int32, shape [2], of words and the numbers after them, which are words, too.

    The key is that of `plain_digest` as words of two numbers; levels before `begin` are
    done.
    """
    rest = tf.concat([_long(numbers) for numbers in after], axis=0)
    for level in range(begin, LEVELS):
        is_last = words.shape[0] + rest.shape[0] <= _BLOCK
        if is_last:
            words = tf.concat([words, rest], axis=0)
        words = _hashed_blocks(_key_of(key, level), words)
        if is_last:
            return _last(key, words)
        # No part of a block: the vector would be copied.
        words, rest = tf.concat([words, rest], axis=0), rest[:0]
    raise ValueError("There are more numbers than a digest takes.")


def _key_of(key: tf.Tensor, level: int) -> tf.Tensor:
    """uint64, shape [2, 512]."""
    words = _VALUES * _BLOCK
    return tf.reshape(key[level * words : (level + 1) * words], [_VALUES, _BLOCK])


def digest_of_any_length(
    key: tf.Tensor, words: tf.Tensor, usual_parts: int = 2
) -> tf.Tensor:
    """The digest of words whose number varies, which is part of what is digested.

    In parts of one size, for XLA would compile another program for each number.

    Args:
      key: see `digest_key`; for no other function.
      words: int32, shape [size], of at most 2^27 - 1 words: 512 MB.
      usual_parts: so many of 2^15 words are hashed by one program, and if there are fewer,
        too; more of them by a program for each. The digest is the same.

    Returns:
      int32, shape [2].

    Raises:
      InvalidArgumentError: if there are more words.
    """
    words = tf.concat([tf.shape(words), words], axis=0)
    count = -(-tf.size(words) // _PART)
    room = usual_parts * _PART

    def of_few() -> tf.Tensor:
        # Each program by itself starts threads: all levels of a few parts are one.
        padded = tf.pad(words, [[0, room - tf.size(words)]])
        return _of_few_parts(key, tf.reshape(padded, [usual_parts, _PART]), count)

    def of_many() -> tf.Tensor:
        return _of_many_parts(key, words, count)

    known = words.shape[0]
    if known is not None:
        return of_few() if known <= room else of_many()
    return tf.ensure_shape(tf.cond(count <= usual_parts, of_few, of_many), [2])


@shared_function(experimental_attributes=NOT_INLINED)
def _of_many_parts(key: tf.Tensor, words: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    padded = tf.pad(words, [[0, count * _PART - tf.size(words)]])
    parts = tf.reshape(padded, [-1, _PART])
    values = tf.TensorArray(tf.int64, count, element_shape=[_VALUES])
    _, values = tf.while_loop(
        lambda i, _: i < count,
        lambda i, found: (i + 1, found.write(i, _levels_of_part(key, parts[i]))),
        (tf.constant(0), values),
        parallel_iterations=1,
    )
    found = tf.reshape(values.stack(), [-1])
    found = tf.pad(found, [[0, _LAST_BLOCKS * _BLOCK - tf.size(found)]])
    return _last_levels(key, tf.ensure_shape(found, [_LAST_BLOCKS * _BLOCK]))


@shared_function(jit_compile=True)
def _of_few_parts(key: tf.Tensor, words: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    key = _paired(key)
    none = tf.zeros([_VALUES], tf.uint64)
    parts = [
        tf.where(i < count, _hashed(key, _paired(part), range(_PART_LEVELS)), none)
        for i, part in enumerate(tf.unstack(words))
    ]
    size = _LAST_BLOCKS * _BLOCK
    found = tf.pad(tf.concat(parts, axis=0), [[0, size - _VALUES * len(parts)]])
    return _last(key, _hashed(key, found, range(_PART_LEVELS, LEVELS)))


@shared_function(jit_compile=True)
def _levels_of_part(key: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
    """Two words from a part, int64."""
    found = _hashed(_paired(key), _paired(words), range(_PART_LEVELS))
    return tf.bitcast(found, tf.int64)


@shared_function(jit_compile=True)
def _last_levels(key: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
    key, words = _paired(key), tf.bitcast(words, tf.uint64)
    return _last(key, _hashed(key, words, range(_PART_LEVELS, LEVELS)))


def _hashed(key: tf.Tensor, words: tf.Tensor, levels: range) -> tf.Tensor:
    """Words after some levels, uint64."""
    for level in levels:
        words = _hashed_blocks(_key_of(key, level), words)
    return words


def keyed_digest(
    key: tf.Tensor,
    value: tf.Tensor | Sequence[tf.Tensor],
    more: tf.Tensor | None = None,
    *,
    compiles: bool = False,
) -> tf.Tensor:
    """`plain_digest`, compiled by XLA where that pays.

    The value may be in pieces, which have the digest of all of them one after the other.
    On a CPU a vector of odd size is copied, and so are pieces of which one is.

    Args:
      key: see `plain_digest`.
      value: likewise, or its pieces.
      more: see `plain_digest`.
      compiles: whether short vectors are compiled, too: for programs of many steps.
    """
    if device_kind() == "CPU":
        return _host_digest(key, value, more, compiles)
    if not tf.is_tensor(value):
        value = tf.concat(value, axis=0)
    return _compiled_digest(key, value, more)


_compiled_digest = shared_function(plain_digest, jit_compile=True)


@shared_function
def _host_digest(
    key: tf.Tensor,
    value: tf.Tensor | Sequence[tf.Tensor],
    more: tf.Tensor | None,
    compiles: bool,
) -> tf.Tensor:
    """As processors have pairs of numbers in their memory: nothing is copied."""
    key = _as_words(key)
    whole: tf.Tensor = value
    if isinstance(value, (list, tuple)):
        sizes = [piece.shape[0] for piece in value]
        if sum(sizes) > _FEW and not any(size % 2 for size in sizes):
            pieces = [_as_words(piece) for piece in value]
            return _digest_of_pieces(key, pieces, *_after(value[-1][:0], more))
        whole = tf.concat(value, axis=0)
    even = whole.shape[0] // 2 * 2
    words = _as_words(whole if even == whole.shape[0] else whole[:even])
    compiles = compiles or whole.shape[0] > _FEW
    digest = _compiled_words if compiles else _digest
    return digest(key, words, *_after(whole[even:], more))


def _as_words(numbers: tf.Tensor) -> tf.Tensor:
    """As `_paired`, of the same memory."""
    return tf.bitcast(tf.reshape(numbers, [-1, 2]), tf.uint64)


_compiled_words = shared_function(_digest, jit_compile=True)


def _hashed_blocks(key: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
    """Two words for each block, then those that make no block.

    The words of a block stand in a column of the rows that the vector is cut into: sums
    along columns are vectorized. Fewer words than a block are filled up with zeros.
    """
    size = words.shape[0]
    if size < _BLOCK:
        words = tf.pad(words, [[0, _BLOCK - size]])
    blocks = max(1, size // _BLOCK)
    values = _hashed_rows(key, words[: _BLOCK * blocks], blocks)
    return tf.concat([tf.reshape(values, [-1]), words[_BLOCK * blocks :]], axis=0)


def _hashed_rows(key: tf.Tensor, words: tf.Tensor, blocks: int) -> tf.Tensor:
    """What some rows of all blocks add to the values, shape [2, blocks].

    Args:
      key: of the rows, shape [2, rows].
      words: shape [rows * blocks].
      blocks: columns of a row.
    """
    rows = tf.reshape(words, [-1, 1, blocks])
    keys = tf.transpose(key)[:, :, None]
    summands = _SUMMANDS
    while summands > 1 and rows.shape[0] < _TREE * summands:
        summands //= 2
    if 2 * words.shape[0] > _FEW and rows.shape[0] % summands == 0:
        # Rows are added up before they are stored.
        parts = zip(tf.split(rows, summands), tf.split(keys, summands))
        products = tf.add_n([_product(row + own) for row, own in parts])
    else:
        products = _product(rows + keys)
    return tf.reduce_sum(products, axis=0)


def _digest_of_pieces(
    key: tf.Tensor, pieces: list[tf.Tensor], *after: tf.Tensor
) -> tf.Tensor:
    """`_digest` of pieces of a vector: rows that are within one are not copied.

    A sum of integers is the same in any order.
    """
    blocks = sum(piece.shape[0] for piece in pieces) // _BLOCK
    values, left, begin, row = [], [], 0, 0
    for piece in pieces:
        first, end = -(-begin // blocks), begin + piece.shape[0]
        count = (min(end // blocks, _BLOCK) - first) // _SUMMANDS * _SUMMANDS
        if count > 0:
            skipped, last = first * blocks - begin, first + count
            values.append(_compiled_rows(key, piece, skipped, first, last, blocks))
            left.append((row, first))
            row = last
        begin = end
    left.append((row, _BLOCK))
    # Not by XLA, which would look for the piece of each word.
    wanted = [(first * blocks, last * blocks) for first, last in left]
    wanted.append((_BLOCK * blocks, begin))
    words = [part for one in wanted for part in _between(pieces, *one)]
    others = tf.concat([pieces[0][:0], *words], axis=0)
    return _compiled_rest(key, values, others, left, *after)


@shared_function(jit_compile=True, reduce_retracing=False)
def _compiled_rows(
    key: tf.Tensor, piece: tf.Tensor, skipped: int, first: int, last: int, blocks: int
) -> tf.Tensor:
    words = piece[skipped : skipped + (last - first) * blocks]
    return _hashed_rows(_key_of(key, 0)[:, first:last], words, blocks)


@shared_function(jit_compile=True, reduce_retracing=False)
def _compiled_rest(
    key: tf.Tensor,
    values: list[tf.Tensor],
    words: tf.Tensor,
    left: list[tuple[int, int]],
    *after: tf.Tensor,
) -> tf.Tensor:
    """The digest, from what most rows add to the values, and the words that are left."""
    blocks = values[0].shape[1]
    keys = tf.concat([_key_of(key, 0)[:, a:b] for a, b in left], axis=1)
    size = keys.shape[1] * blocks
    if size:
        values = [*values, _hashed_rows(keys, words[:size], blocks)]
    words = tf.concat([tf.reshape(tf.add_n(values), [-1]), words[size:]], axis=0)
    return _digest(key, words, *after, begin=1)


def _between(pieces: Sequence[tf.Tensor], begin: int, end: int) -> list[tf.Tensor]:
    """Slices that are the words from one place of all pieces to another."""
    found, start = [], 0
    for piece in pieces:
        own = piece[max(begin - start, 0) : max(end - start, 0)]
        if own.shape[0]:
            found.append(own)
        start += piece.shape[0]
    return found


def _product(words: tf.Tensor) -> tf.Tensor:
    """Of the halves of each word."""
    return _lower(words) * _upper(words)


def _last(key: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
    """Two numbers from the halves of two words."""
    key = tf.reshape(key[-_LAST_WORDS // 2 :], [2, 2 * _VALUES + 1])
    halves = [
        half for word in tf.unstack(words) for half in (_lower(word), _upper(word))
    ]
    # The first number of the key is added.
    factors = tf.stack([tf.constant(1, tf.uint64), *halves])
    total = tf.reduce_sum(key * factors, axis=1)
    return tf.bitcast(tf.cast(_upper(total), tf.uint32), tf.int32)


def _long(numbers: tf.Tensor) -> tf.Tensor:
    """uint64 of the bits of float32 or int32."""
    return tf.cast(tf.bitcast(numbers, tf.uint32), tf.uint64)


def _lower(words: tf.Tensor) -> tf.Tensor:
    return words & tf.constant(2**32 - 1, tf.uint64)


def _upper(words: tf.Tensor) -> tf.Tensor:
    return tf.bitwise.right_shift(words, tf.constant(32, tf.uint64))


def _moved(words: tf.Tensor) -> tf.Tensor:
    """Lower halves to upper ones."""
    return tf.bitwise.left_shift(words, tf.constant(32, tf.uint64))
