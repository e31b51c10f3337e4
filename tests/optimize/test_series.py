"""Differentiable power series against their NumPy counterparts."""

import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf.matrices import power_series
from tf_bandmf.optimize import series


def random_series(n, w):
    rng = np.random.default_rng(n + w)
    return np.concatenate([[1.3], rng.normal(size=w - 1) / (2 * w)])


@pytest.mark.parametrize("n, w", [(1, 1), (5, 3), (200, 1), (200, 70), (1000, 1000)])
def test_convolution(n, w):
    x, kernel = np.random.default_rng(0).normal(size=n), random_series(n, w)
    found = series.convolve(tf.constant(x), tf.constant(kernel))
    np.testing.assert_allclose(found, np.convolve(x, kernel)[:n], atol=1e-12)


@pytest.mark.parametrize(
    "n, w", [(1, 1), (5, 3), (128, 4), (129, 128), (600, 1), (700, 17), (1500, 343)]
)
def test_inverse_and_its_gradient(n, w):
    a = random_series(n, w)
    weights = np.cos(np.arange(n))
    x = tf.constant(a)
    with tf.GradientTape() as tape:
        tape.watch(x)
        found = series.inverse(x, n)
        total = tf.reduce_sum(weights * found)
    expected = power_series.inverse(a, n)
    np.testing.assert_allclose(found, expected, atol=1e-13)
    # d(1/a) = -(1/a)^2 da.
    squared = power_series.multiply(expected, expected, n)
    gradient = [-weights[j:] @ squared[: n - j] for j in range(w)]
    np.testing.assert_allclose(tape.gradient(total, x), gradient, rtol=1e-9, atol=1e-11)
