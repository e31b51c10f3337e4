"""Power series: the first columns of lower-triangular Toeplitz matrices, float64.

A lower-triangular Toeplitz matrix corresponds to the power series of its first column:
products, inverses and square roots of these matrices correspond to products, inverses
and square roots of the series, truncated to n terms.
"""

from __future__ import annotations

import numpy as np


def multiply(a: np.ndarray, b: np.ndarray, num_terms: int) -> np.ndarray:
    """Returns the first `num_terms` coefficients of the product of two series."""
    product = np.convolve(a[:num_terms], b[:num_terms])[:num_terms]
    return np.pad(product, (0, num_terms - product.size))


def square_root(a: np.ndarray, num_terms: int) -> np.ndarray:
    """Returns the first `num_terms` coefficients of the square root of a series.

    The square root is the solution of `root * root = a` with `root[0] > 0`. It is
    computed term by term, in O(num_terms^2) operations, and without cancellation for
    the workloads of this library.

    Raises:
      ValueError: if `a[0]` is not positive.
    """
    if not a[0] > 0.0:
        raise ValueError(f"The leading coefficient must be > 0, found {a[0]}.")
    a = np.pad(np.asarray(a, np.float64)[:num_terms], (0, max(num_terms - len(a), 0)))
    root = np.zeros(num_terms)
    root[0] = np.sqrt(a[0])
    for m in range(1, num_terms):
        inner = root[1:m] @ root[m - 1 : 0 : -1]
        root[m] = (a[m] - inner) / (2.0 * root[0])
    return root


def power(a: np.ndarray, exponent: float, num_terms: int) -> np.ndarray:
    """Returns the first `num_terms` coefficients of `a ** exponent` for a real exponent.

    Miller's recurrence computes the power `p = a ** exponent` in O(num_terms len(a))
    operations. It follows from `p a' exponent = a p'`, where `'` is the derivative.

    Raises:
      ValueError: if `a[0]` is not positive.
    """
    if not a[0] > 0.0:
        raise ValueError(f"The leading coefficient must be > 0, found {a[0]}.")
    result = np.zeros(num_terms)
    result[0] = a[0] ** exponent
    for m in range(1, num_terms):
        k = np.arange(1, min(m, len(a) - 1) + 1)
        terms = (k * (exponent + 1.0) - m) * a[k] * result[m - k]
        result[m] = terms.sum() / (m * a[0])
    return result


def power_of_linear(decay: float, exponent: float, num_terms: int) -> np.ndarray:
    """Returns the first coefficients of the binomial series `(1 - decay x)^exponent`.

    Coefficient `k` is `(-decay)^k binom(exponent, k)`.
    """
    k = np.arange(1, num_terms)
    return np.concatenate([[1.0], np.cumprod(decay * (k - 1.0 - exponent) / k)])
