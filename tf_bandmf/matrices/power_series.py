"""Power series: the first columns of lower-triangular Toeplitz matrices, float64.

A lower-triangular Toeplitz matrix corresponds to the power series of its first column:
powers of these matrices correspond to powers of the series, truncated to n terms.
"""

from __future__ import annotations

import numpy as np


def power(a: np.ndarray, exponent: float, num_terms: int) -> np.ndarray:
    """Returns the first `num_terms` coefficients of `a ** exponent` for a real exponent.

    Miller's recurrence computes the power `p = a ** exponent` in O(num_terms len(a))
    operations. The recurrence follows from `p a' exponent = a p'`, where `'` is the
    derivative.

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
