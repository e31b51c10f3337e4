"""Independent standard normals from a counter-based generator."""

from __future__ import annotations

import functools
from typing import Callable

import numpy as np
import tensorflow as tf

from tf_bandmf.noise.philox import halves, philox

# Normals are made in blocks of this many, so that any block can be made by itself.
BLOCK = 4096
_COUNTERS_PER_BLOCK = BLOCK // 4  # one Philox counter gives four 32-bit words
_PHILOX = 1  # tf.random.Algorithm.PHILOX, never "auto_select"

# Polynomials in x**2 for sin(x)/x and cos(x) where |x| <= pi/4, errors below 1e-8:
# S. Moshier's Cephes library, sinf.c.
_SINE = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1, 1.0)
_COSINE = (
    2.443315711809948e-5,
    -1.388731625493765e-3,
    4.166664568298827e-2,
    -0.5,
    1.0,
)


def standard_normals(
    step_key: tf.Tensor,
    num_normals: int,
    first_block: tf.Tensor | int = 0,
    *,
    jit_compile: bool = True,
) -> tf.Tensor:
    """Independent standard normals, float32, shape [num_normals].

    Box-Muller on the bits of Philox: the bits are the same with and without XLA and on
    every device, and the normals agree to float precision. (The generator
    `tf.random.stateless_normal` gives other numbers under XLA.) The largest magnitude
    is 6.7.

    Args:
      step_key: uint64, shape [2]: Philox key, and upper half of its counter.
      num_normals: static.
      first_block: where to begin, in blocks of 4096 normals: a shard generates its
        part alone.
      jit_compile: False for graphs that are executed where XLA is missing: three to
        six times slower.
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
    """`sum_j weights[j] z_j` of the standard normals `z_j` of several keys.

    In one pass: no `z_j` is ever in memory, unless jit_compile is False.

    Args:
      step_keys: uint64, shape [terms, 2], see `standard_normals`.
      weights: float32, shape [terms].
      num_normals: see `standard_normals`.
      first_block: see `standard_normals`.
      jit_compile: see `standard_normals`.
    """
    num_blocks = -(-num_normals // BLOCK)
    first_counter = tf.cast(first_block, tf.uint64) * _COUNTERS_PER_BLOCK
    blocks = _compiled_blocks if jit_compile else _plain_blocks
    pairs = blocks(num_blocks, int(weights.shape[0]))(step_keys, weights, first_counter)
    # Normals 2 i and 2 i + 1 are real and imaginary part of number i.
    if traced_under_xla():  # which knows no such bitcast
        parts = tf.stack([tf.math.real(pairs), tf.math.imag(pairs)], axis=-1)
    else:
        parts = tf.bitcast(pairs, tf.float32)
    return tf.reshape(parts, [-1])[:num_normals]


def traced_under_xla() -> bool:
    """Whether this is traced into a function that XLA compiles."""
    from tensorflow.python.framework import ops
    from tensorflow.python.ops import control_flow_util

    if tf.executing_eagerly():
        return False
    return bool(control_flow_util.GraphOrParentsInXlaContext(ops.get_default_graph()))


# From keys, weights and the first counter to normals in pairs, complex64.
_Blocks = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]


@functools.cache
def _compiled_blocks(num_blocks: int, num_terms: int) -> _Blocks:
    def pairs(
        step_keys: tf.Tensor, weights: tf.Tensor, first_counter: tf.Tensor
    ) -> tf.Tensor:
        # Pair i takes words 0 and 1, or 2 and 3, of counter i // 2. Drawing all four
        # words for two of them is cheaper than to bring two pairs into one pass.
        # (The row and column of a pair, for XLA would keep all numbers i as a constant.)
        half = BLOCK // 2
        row = tf.cast(tf.range(num_blocks), tf.uint64) * half + 2 * first_counter
        index = row[:, None] + tf.cast(tf.range(half), tf.uint64)
        one = tf.constant(1, tf.uint64)
        is_second = tf.bitwise.bitwise_and(index, one) > 0

        def normals(j: int) -> tuple[tf.Tensor, tf.Tensor]:
            words = philox(step_keys[j], tf.bitwise.right_shift(index, one))
            return _box_muller(
                tf.where(is_second, words[2], words[0]),
                tf.where(is_second, words[3], words[1]),
            )

        return _weighted_sum(normals, weights, num_terms)

    return tf.function(pairs, jit_compile=True, autograph=False)


def _plain_blocks(num_blocks: int, num_terms: int) -> _Blocks:
    def pairs(
        step_keys: tf.Tensor, weights: tf.Tensor, first_counter: tf.Tensor
    ) -> tf.Tensor:
        def normals(j: int) -> tuple[tf.Tensor, tf.Tensor]:
            # Two words make one of 64 bits, the first one its lower half.
            words = tf.raw_ops.StatelessRandomUniformFullIntV2(
                shape=[num_blocks * BLOCK // 2],
                key=step_keys[j, :1],
                counter=tf.stack([first_counter, step_keys[j, 1]]),
                alg=_PHILOX,
                dtype=tf.uint64,
            )
            return _box_muller(*halves(words))

        return _weighted_sum(normals, weights, num_terms)

    return pairs


def _weighted_sum(
    normals: Callable[[int], tuple[tf.Tensor, tf.Tensor]],
    weights: tf.Tensor,
    num_terms: int,
) -> tf.Tensor:
    cosines, sines = (weights[0] * part for part in normals(0))
    for j in range(1, num_terms):
        cosine, sine = normals(j)
        cosines, sines = cosines + weights[j] * cosine, sines + weights[j] * sine
    return tf.complex(cosines, sines)


def _box_muller(
    radius_word: tf.Tensor, angle_word: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Two independent normals from two uint32 words."""
    # In (0, 1], with full relative precision near 0, where the tails come from.
    low = tf.bitwise.bitwise_and(tf.bitcast(radius_word, tf.int32), 0x7FFFFFFF)
    uniform = (tf.cast(low, tf.float32) + 0.5) * 2.0**-31
    radius = tf.sqrt(-2.0 * tf.math.log(uniform))
    cosine, sine = _cosine_and_sine(tf.bitcast(angle_word, tf.int32))
    return radius * cosine, radius * sine


def _cosine_and_sine(angle: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Of an int32 angle in units of `2^-31 pi`."""
    # The nearest multiple of a quarter turn, modulo 4, and what is left of the angle.
    # (Integers wrap around, as angles do.)
    quarter = tf.constant(30, tf.int32)
    turns = tf.bitwise.right_shift(angle + (1 << 29), quarter)
    rest = tf.cast(angle - tf.bitwise.left_shift(turns, quarter), tf.float32)
    x = rest * np.float32(np.pi * 2.0**-31)
    square = x * x
    near_cosine, near_sine = (
        _polynomial(_COSINE, square),
        x * _polynomial(_SINE, square),
    )
    is_odd = tf.bitwise.bitwise_and(turns, 1) > 0
    return (
        _negated(tf.where(is_odd, near_sine, near_cosine), turns + 1),
        _negated(tf.where(is_odd, near_cosine, near_sine), turns),
    )


def _polynomial(coefficients: tuple[float, ...], x: tf.Tensor) -> tf.Tensor:
    value = tf.constant(coefficients[0], tf.float32)
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value


def _negated(x: tf.Tensor, turns: tf.Tensor) -> tf.Tensor:
    """`-x` where the second bit of `turns` is set."""
    sign = tf.bitwise.left_shift(tf.bitwise.bitwise_and(turns, 2), tf.constant(30))
    return tf.bitcast(tf.bitwise.bitwise_xor(tf.bitcast(x, tf.int32), sign), tf.float32)
