"""Box-Muller: from four words to two independent normals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_bandmf.noise.radius import polynomial, squared_radius

# Polynomials in x**2 for sin(x)/x and cos(x) where |x| <= pi/4, errors below 1e-8:
# S. Moshier's Cephes library, sinf.c.
_SINE = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1, 1.0)
_COSINE = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2, -0.5, 1.0)


def box_muller(
    words: Sequence[tf.Tensor], shared: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Two independent normals from four int32 words and a block's shared part."""
    first, second, third, angle = words
    radius = tf.sqrt(squared_radius(first, second, third, shared))
    cosine, sine = cosine_and_sine(angle)
    return radius * cosine, radius * sine


def cosine_and_sine(angle: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Cosine and sine of an int32 angle in units of `2^-31 pi`."""
    # The nearest multiple of a quarter turn, modulo 4, and what is left of the angle.
    # (Integers wrap around, as angles do.)
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
    """`-x` where the second bit of `turns` is set."""
    sign = tf.bitwise.left_shift(tf.bitwise.bitwise_and(turns, 2), tf.constant(30))
    return tf.bitcast(tf.bitwise.bitwise_xor(tf.bitcast(x, tf.int32), sign), tf.float32)
