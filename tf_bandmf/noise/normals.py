"""Independent standard normals, made from the random words of Philox or ChaCha20."""

from __future__ import annotations

import functools
from typing import Callable, NamedTuple

import tensorflow as tf

from tf_bandmf.noise.box_muller import box_muller, shared_part
from tf_bandmf.noise.chacha import chacha20, chacha20_in_a_row
from tf_bandmf.noise.devices import traced_under_xla
from tf_bandmf.noise.philox import philox, philox_in_a_row
from tf_bandmf.noise.shared import shared_function

# The number of normals in a block. Each block can be generated without the others.
BLOCK = 4096
# The number of pairs of normals in a block. Each pair uses one counter value, for which
# the generator returns four random words.
_PAIRS = BLOCK // 2
# The counter value that yields the words that all pairs of block 0 share. Block 1 uses the
# next value, and so on. The pairs' own counter values are smaller.
_SHARED = 1 << 63
# The number of blocks that one vectorized call generates without XLA. The intermediate
# results of so many blocks fit into the processor's cache.
_CHUNK = 8


def standard_normals(
    step_key: tf.Tensor,
    num_normals: int,
    first_block: tf.Tensor | int = 0,
    *,
    jit_compile: bool = True,
) -> tf.Tensor:
    """Returns independent standard normals, float32, shape [num_normals].

    The method is the Box-Muller transform of random bits from Philox or ChaCha20. The
    bits are the same with and without XLA and on every device, and the normals agree to
    float precision. (`tf.random.stateless_normal` gives different normals under XLA.)
    The maximum magnitude is 14.75. The docstring of the module `box_muller` bounds the
    effect of this limit on delta, and lists the remaining floating-point errors.

    Args:
      step_key: uint64, shape [2]: a Philox key and the upper half of Philox's counter;
        or shape [5]: a ChaCha20 key and the last two words of ChaCha20's nonce.
      num_normals: number of normals, a Python integer.
      first_block: index of the first block of 4096 normals. With this argument, a shard
        can generate its part of a vector without the other parts.
      jit_compile: True to compile the generator with XLA. False, for graphs that are
        executed without XLA, is three to six times slower.
    """
    weights = tf.ones([1])
    return weighted_normals(
        step_key[None], weights, num_normals, first_block, jit_compile=jit_compile
    )


def weighted_normals(
    step_keys: tf.Tensor,
    weights: tf.Tensor,
    num_normals: int,
    first_block: tf.Tensor | int = 0,
    *,
    jit_compile: bool = True,
) -> tf.Tensor:
    """Returns `sum_j weights[j] z_j`, where `z_j` are the standard normals of key j.

    With XLA and Philox, the sum is computed in one loop, and no `z_j` is materialized.
    With ChaCha20, the terms are generated one after another.

    Args:
      step_keys: keys of Philox, uint64, shape [terms, 2], or of ChaCha20, uint64, shape
        [terms, 5], as in `standard_normals`.
      weights: float32, shape [terms].
      num_normals: number of normals per key, a Python integer.
      first_block: index of the first block of 4096 normals.
      jit_compile: True to compile the generator with XLA; False for graphs that are
        executed without XLA.
    """
    num_blocks = -(-num_normals // BLOCK)
    pairs = (compiled_blocks if jit_compile else _blocks_in_chunks)(num_blocks)
    made = pairs(step_keys, weights, tf.cast(first_block, tf.uint64))
    # Normals 2 i and 2 i + 1 are the real and the imaginary part of the i-th complex
    # number. XLA cannot bitcast complex numbers to pairs of floats, so under XLA the two
    # parts are stacked.
    if traced_under_xla():
        parts = tf.stack([tf.math.real(made), tf.math.imag(made)], axis=-1)
    else:
        parts = tf.bitcast(made, tf.float32)
    return tf.reshape(parts, [-1])[:num_normals]


class WordSource(NamedTuple):
    """A source of random words: four words per step key and counter.

    Attributes:
      four: function of a key, shape [key_words], and counters, uint64, any shape, that
        returns four uint32 tensors of words. It is intended for XLA.
      in_a_row: function of a key, the first counter and the number of counters, that
        returns the same words as int32, shape [num_counters, 4]. It is faster than
        `four` without XLA.
      of_many_operations: True if even a few words need so many TensorFlow ops that XLA
        is faster.
    """

    four: Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, ...]]
    in_a_row: Callable[[tf.Tensor, tf.Tensor, int], tf.Tensor]
    of_many_operations: bool


# The word source for each number of uint64 words in a step's key. All steps of a run use
# the same source.
_SOURCES = {
    2: WordSource(philox, philox_in_a_row, False),
    5: WordSource(chacha20, chacha20_in_a_row, True),
}


def source_of(step_keys: tf.Tensor) -> WordSource:
    """Returns the word source for keys of static shape [..., key_words]."""
    return _SOURCES[step_keys.shape[-1]]


# A function of step keys, their weights and the index of the first block. It generates
# the normals of each key, and returns their weighted sum as pairs of numbers, complex64.
_Blocks = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]


@functools.cache
def compiled_blocks(num_blocks: int) -> _Blocks:
    """Returns a function that generates `num_blocks` blocks of normals with XLA.

    All models share this function.
    """
    compiled = compiled_pairs(num_blocks)

    def pairs(
        step_keys: tf.Tensor, weights: tf.Tensor, first_block: tf.Tensor
    ) -> tf.Tensor:
        shared_parts = _compiled_shared(num_blocks)
        if not source_of(step_keys).of_many_operations:
            # The shared parts of the blocks are computed outside of the compiled program,
            # in which XLA would recompute a block's shared part for each of its pairs.
            shared = _shared_parts(step_keys, first_block, num_blocks)
            return compiled(step_keys, weights, first_block, shared)
        # With ChaCha20, each term of the sum is a program of its own, because XLA takes
        # most of an hour to compile two terms in one expression.
        total: tf.Tensor | None = None
        for j in range(weights.shape[0]):
            # Terms are added one after another, so only two vectors are in memory.
            with tf.control_dependencies([] if total is None else [total]):
                key, weight = step_keys[j : j + 1], weights[j : j + 1]
                shared = shared_parts(key[0], first_block)
                added = compiled(key, weight, first_block, shared[None])
            total = added if total is None else total + added
        return total

    return shared_function(pairs)


@functools.cache
def compiled_pairs(num_blocks: int) -> Callable[..., tf.Tensor]:
    """Returns an XLA program that generates weighted sums of pairs of normals.

    Its arguments are the step keys, their weights, the index of the first block, and the
    numbers that the pairs of each block share, shape [terms, num_blocks].
    """

    def pairs(
        step_keys: tf.Tensor,
        weights: tf.Tensor,
        first_block: tf.Tensor,
        shared: tf.Tensor,
    ) -> tf.Tensor:
        # The counters are computed from the row and column of each pair. Otherwise, XLA
        # would store all counters as a constant.
        block = tf.cast(tf.range(num_blocks), tf.uint64) + first_block
        counter = (block * _PAIRS)[:, None] + tf.cast(tf.range(_PAIRS), tf.uint64)

        # This is a `tf.function` because it is then traced only once for all terms. XLA
        # inlines it, so the sum is one expression.
        @tf.function(autograph=False)
        def of_key(
            step_key: tf.Tensor, counter: tf.Tensor, shared: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor]:
            words = source_of(step_key).four(step_key, counter)
            signed = [tf.bitcast(word, tf.int32) for word in words]
            return box_muller(signed, shared[:, None])

        return _weighted_sum(
            lambda j: of_key(step_keys[j], counter, shared[j]), weights
        )

    return shared_function(pairs, jit_compile=True)


def _blocks_in_chunks(num_blocks: int) -> _Blocks:
    """Returns a function that generates `num_blocks` blocks of normals without XLA.

    It generates a few blocks at a time, so that intermediate results fit into the
    processor's cache.
    """
    chunk = min(num_blocks, _CHUNK)
    num_chunks = -(-num_blocks // chunk)

    def pairs(
        step_keys: tf.Tensor, weights: tf.Tensor, first_block: tf.Tensor
    ) -> tf.Tensor:
        def of_chunk(i: tf.Tensor | int) -> tf.Tensor:
            block = first_block + tf.cast(i, tf.uint64) * chunk

            def normals(j: int) -> tuple[tf.Tensor, tf.Tensor]:
                in_a_row = source_of(step_keys).in_a_row
                words = in_a_row(step_keys[j], block * _PAIRS, chunk * _PAIRS)
                words = tf.reshape(words, [chunk, _PAIRS, 4])
                shared = _shared_parts(step_keys[j : j + 1], block, chunk)
                return box_muller(tf.unstack(words, axis=-1), shared[0, :, None])

            return _weighted_sum(normals, weights)

        if num_chunks == 1:
            return of_chunk(0)
        return tf.map_fn(
            of_chunk,
            tf.range(num_chunks),
            # The chunks are generated on several threads.
            parallel_iterations=8,
            fn_output_signature=tf.complex64,
        )

    return pairs


def _shared_parts(
    step_keys: tf.Tensor, first_block: tf.Tensor, num_blocks: int
) -> tf.Tensor:
    """Returns, for each key and block, the number that all pairs of the block share.

    This number is the result of `box_muller.shared_part` for two random words.

    Returns:
      float32, shape [terms, num_blocks].
    """
    counter = first_block + tf.constant(_SHARED, tf.uint64)
    in_a_row = source_of(step_keys).in_a_row
    terms = range(step_keys.shape[0])
    words = [in_a_row(step_keys[j], counter, num_blocks) for j in terms]
    first, second, *_ = tf.unstack(tf.stack(words), axis=-1)
    return shared_part(first, second)


@functools.cache
def _compiled_shared(num_blocks: int) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Returns an XLA program for the numbers of `_shared_parts`, for a single key.

    Its arguments are one step key and the index of the first block. It returns the
    numbers of `num_blocks` blocks, float32, shape [num_blocks].
    """

    def parts(step_key: tf.Tensor, first_block: tf.Tensor) -> tf.Tensor:
        counter = first_block + tf.constant(_SHARED, tf.uint64)
        counters = counter + tf.cast(tf.range(num_blocks), tf.uint64)
        first, second, *_ = source_of(step_key).four(step_key, counters)
        return shared_part(tf.bitcast(first, tf.int32), tf.bitcast(second, tf.int32))

    return shared_function(parts, jit_compile=True)


def _weighted_sum(
    normals: Callable[[int], tuple[tf.Tensor, tf.Tensor]], weights: tf.Tensor
) -> tf.Tensor:
    cosines, sines = (weights[0] * part for part in normals(0))
    for j in range(1, weights.shape[0]):
        cosine, sine = normals(j)
        cosines, sines = cosines + weights[j] * cosine, sines + weights[j] * sine
    return tf.complex(cosines, sines)
