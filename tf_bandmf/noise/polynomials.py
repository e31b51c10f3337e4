"""Polynomials in float32, the same operations with and without XLA."""

from __future__ import annotations

import tensorflow as tf


def polynomial(coefficients: tuple[float, ...], x: tf.Tensor) -> tf.Tensor:
    """Horner's rule; `coefficients` from that of the highest power on."""
    value = tf.constant(coefficients[0], tf.float32)
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value
