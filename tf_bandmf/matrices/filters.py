"""Products and solves with banded matrices.

Importing `scipy.signal` takes longer than most computations of this module, so it is
imported only for large problems.
"""

from __future__ import annotations

import numpy as np

# Above this number of diagonals, a convolution by FFT is faster than a direct
# convolution.
_FFT_BANDS = 512
# The maximum number of entries of a banded matrix that is materialized for BLAS.
_LARGEST_STORAGE = 2**24


def convolve(coefficients: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Returns `y[i] = sum_j coefficients[j] x[i - j]` along axis 0, shaped like `x`.

    Args:
      coefficients: shape [w], w <= n.
      x: shape [n] or [n, m].
    """
    if coefficients.size > _FFT_BANDS:
        import scipy.signal

        column = coefficients if x.ndim == 1 else coefficients[:, None]
        return scipy.signal.fftconvolve(x, column, axes=0)[: x.shape[0]]
    if x.ndim == 1:
        return np.convolve(coefficients, x)[: x.size]
    result = coefficients[0] * x
    for j in range(1, coefficients.size):
        result[j:] += coefficients[j] * x[:-j]
    return result


def deconvolve(coefficients: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Returns the `y` with `convolve(coefficients, y) = x`, shaped like `x`.

    Args:
      coefficients: shape [w], w <= n, the first one not 0.
      x: shape [n] or [n, m].
    """
    n, w = x.shape[0], coefficients.size
    if n * w > _LARGEST_STORAGE:
        import scipy.signal

        return scipy.signal.lfilter([1.0], coefficients, x, axis=0)
    # BLAS stores arrays column by column, so it needs no copy of this transposed array.
    return solve_banded(np.tile(coefficients, (n, 1)).T, x)


def solve_banded(diagonals: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Returns `M^-1 x` for a lower-triangular banded `M`.

    Args:
      diagonals: shape [w, n]; entry `[j, i]` is `M[i + j, i]`. Entries outside `M` are
        ignored.
      x: shape [n] or [n, m].
    """
    import scipy.linalg.blas

    columns = x[:, None] if x.ndim == 1 else x
    solved = np.empty_like(columns)
    for m in range(columns.shape[1]):
        solved[:, m] = scipy.linalg.blas.dtbsv(
            diagonals.shape[0] - 1, diagonals, columns[:, m], lower=1
        )
    return solved.reshape(x.shape)
