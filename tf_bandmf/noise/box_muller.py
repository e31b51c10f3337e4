"""Box-Muller: two independent normals from four random words, accurate in both tails.

A pair `z` of normals has `|z|^2 = -2 log(u)` with a uniform `u`. The sign bit of the
first word selects the half of the unit interval that contains `u`. The other bits
determine `t`, the distance of `u` from the nearer end of the interval: `u = t` or
`u = 1 - t`. The distance is a sum of multiples of powers of two,

    2^32 t = a + 2^-31 b + 2^-62 c + s,    s = 2^-93 g + 2^-124 (h + 1/2),

where all letters but `s` and `t` are 31-bit integers. `a`, `b` and `c` come from three
words that only this pair uses; `g` and `h` come from two words that all 2048 pairs of a
block share. Products with powers of two are exact and nothing underflows
(`2^32 t >= 2^-125`). Therefore float32 rounds `t` identically with and without fused
multiply-add, XLA and flushing of subnormals to zero.

**Deviations from the normal distribution.** Let `Z` be the matrix whose rows are the
normals of the steps, and `d` the length of a row. Adding one record has the same effect
on the released values as shifting `m` rows of `Z`, that is, `m d / 2` pairs. The number
`m` is at most the number of steps; under DP-SGD, it is the number of participations. The
joint norm of all shifts is at most `1 / noise_multiplier`. Three effects could
distinguish this noise from independent pairs of normals with `t` rounded to float32:

1. *The edge.* No pair has a norm above `R = sqrt(2 * 157 log 2) = 14.75`. To first
   order, a shift `v` moves a pair over this edge with probability
   `R exp(-R^2 / 2) |v| / pi`: the density at the edge times the mean outward component
   of the shift. By Cauchy-Schwarz, `sum |v| <= sqrt(m d / 2) / noise_multiplier`, so
   outputs that are impossible without the record have probability at most

       R 2^-157 / pi sqrt(m d / 2) / noise_multiplier.

2. *Too few bits.* The possible values of `t` are `2^-156` apart. Where `t < 2^-133`,
   this exceeds the spacing of float32 numbers. Some pair has such a `t` with
   probability at most `m d 2^-133`.
3. *Shared words.* If `t >= 2^-70`, the shared words affect at most the last rounding.
   Two pairs of a block both have a smaller `t`, and are then dependent, with
   probability `2^21 2^-138`; some block has such pairs with probability `m d 2^-129`.

For `m d <= 10^15` (a billion parameters, a million steps) and noise multipliers above
`10^-12`, these probabilities sum to less than `2 * 10^-24`: less than a thousandth of
the minimum delta that a plan accepts, `checks.SMALLEST_DELTA = 10^-20`.

**Remaining floating-point effects.** The noise consists of float32 numbers: rounded
normals, not a discrete Gaussian. Radius and angle have relative errors of about 2^-23.
The `2^32` angles lie `1.5e-9` apart, so normals of magnitude below 0.02 have a coarser
spacing than float32. The sum of gradient and noise is rounded again, and the exact bits
of this sum rule out some gradients; therefore means are rounded to a grid
(`accounting.gaussian.grid_of`). The stated (epsilon, delta) assumes exact real
arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

# The maximum norm of a pair of normals: `sqrt(-2 log(u))` for the minimum u = 2^-157.
LARGEST_NORMAL = float(np.sqrt(2.0 * 157.0 * np.log(2.0)))

# Minimax polynomial for -2 log(1 - x) / x on 0 <= x <= 1/2, with relative error 5e-8.
_LOGARITHM = (
    2.882216,
    -3.3916235,
    2.5153387,
    -0.4070771,
    0.5392252,
    0.48561022,
    0.6674012,
    0.9999857,
    2.0,
)
# The bit mask of a float32's mantissa, and the bits of the float32 number 0.5.
_MANTISSA, _HALF = 0x7FFFFF, 0x3F000000
# The number t is stored as 2^32 t, because its minimum would be a subnormal float32.
_SCALE = 32

# Polynomials in x**2 for sin(x)/x and cos(x) where |x| <= pi/4, with errors below 1e-8,
# from S. Moshier's Cephes library, sinf.c.
_SINE = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1, 1.0)
_COSINE = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2, -0.5, 1.0)


def box_muller(
    words: Sequence[tf.Tensor], shared: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns two independent standard normals, float32, for each entry of the words.

    Args:
      words: four int32 tensors of the same shape.
      shared: from `shared_part`; broadcastable to the shape of the words.
    """
    first, second, third, angle = words
    radius = tf.sqrt(squared_radius(first, second, third, shared))
    cosine, sine = cosine_and_sine(angle)
    return radius * cosine, radius * sine


def cosine_and_sine(angle: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the cosine and sine of an int32 angle in units of `2^-31 pi`."""
    # Split the angle into the nearest number of quarter turns, modulo 4, and a
    # remainder. Int32 overflow wraps around, just as an angle does after a full turn.
    quarter = tf.constant(30, tf.int32)
    turns = tf.bitwise.right_shift(angle + (1 << 29), quarter)
    rest = tf.cast(angle - tf.bitwise.left_shift(turns, quarter), tf.float32)
    x = rest * np.float32(np.pi * 2.0**-31)
    square = x * x
    cosine, sine = polynomial(_COSINE, square), x * polynomial(_SINE, square)
    is_odd = tf.bitwise.bitwise_and(turns, 1) > 0
    return (
        _negated(tf.where(is_odd, sine, cosine), turns + 1),
        _negated(tf.where(is_odd, cosine, sine), turns),
    )


def _negated(x: tf.Tensor, turns: tf.Tensor) -> tf.Tensor:
    """Returns `-x` where the second lowest bit of `turns` is set, else `x`."""
    sign = tf.bitwise.left_shift(tf.bitwise.bitwise_and(turns, 2), tf.constant(30))
    return tf.bitcast(tf.bitwise.bitwise_xor(tf.bitcast(x, tf.int32), sign), tf.float32)


def shared_part(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    """Returns `s`, the term of `2^32 t` that all pairs of normals in a block share.

    It is `2^-93 g + 2^-124 (h + 1/2)`, a float32 in [2^-125, 2^-62], where `g` and `h`
    are the lower 31 bits of two random int32 words, `first` and `second`.
    """
    return _scaled(first, -93) + (_low_bits(second) + 0.5) * np.float32(2.0**-124)


def squared_radius(
    first: tf.Tensor, second: tf.Tensor, third: tf.Tensor, shared: tf.Tensor
) -> tf.Tensor:
    """Returns `-2 log(u)`, float32, the squared norm of a pair of normals.

    The words determine `u`, which is uniform in the unit interval, so the result is
    exponentially distributed with mean 2. Its relative error is about 2^-22.

    Args:
      first: int32 words.
      second: int32 words, same shape.
      third: int32 words, same shape.
      shared: from `shared_part`; broadcastable to the shape of the words.
    """
    t = distance(first, second, third, shared)
    # Write u = 2^-k (1 - x). In the lower half of the unit interval, u = t determines k
    # and x. In the upper half, u = 1 - t, so k = 0 and x = t, however small t is. In
    # both halves, the two terms of `-log(u) = k log(2) - log(1 - x)` have the same
    # sign.
    bits = tf.bitcast(t, tf.int32)
    k = 126 + _SCALE - tf.bitwise.right_shift(bits, tf.constant(23, tf.int32))
    mantissa = tf.bitwise.bitwise_or(tf.bitwise.bitwise_and(bits, _MANTISSA), _HALF)
    is_upper = first < 0
    x = tf.where(
        is_upper, t * np.float32(2.0**-_SCALE), 1.0 - tf.bitcast(mantissa, tf.float32)
    )
    k_or_0 = tf.where(is_upper, 0.0, tf.cast(k, tf.float32))
    return x * polynomial(_LOGARITHM, x) + k_or_0 * np.float32(2.0 * np.log(2.0))


def distance(
    first: tf.Tensor, second: tf.Tensor, third: tf.Tensor, shared: tf.Tensor
) -> tf.Tensor:
    """Returns `2^32 t`, where `t = min(u, 1 - u)` for the uniform number `u`.

    The arguments are those of `squared_radius`. The result is a float32 in
    [2^-125, 2^31] with the same bits on all devices.
    """
    low_words = _scaled(second, -31) + (_scaled(third, -62) + shared)
    return _low_bits(first) + low_words


def polynomial(coefficients: tuple[float, ...], x: tf.Tensor) -> tf.Tensor:
    """Evaluates a polynomial in float32; the highest power's coefficient comes first."""
    value = tf.constant(coefficients[0], tf.float32)
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value


def _low_bits(word: tf.Tensor) -> tf.Tensor:
    """Returns the lower 31 bits of a word as a float32.

    The word is an int32, which one instruction converts to float32.
    """
    return tf.cast(tf.bitwise.bitwise_and(word, 0x7FFFFFFF), tf.float32)


def _scaled(word: tf.Tensor, exponent: int) -> tf.Tensor:
    return _low_bits(word) * np.float32(2.0**exponent)
