"""The squared sensitivity of a Toeplitz `C`, and its gradient.

The entries of `C` may be positive or negative.

Let b be the min separation and k the maximum number of participations. If the first
column of `C` is nonnegative and, under min-separation participation, does not increase
from entry b on, the sensitivity is the norm of the sum of the columns 0, b, ...,
(k - 1) b.

With a fixed epoch order and entries of any sign, an example participates in the steps
i, i + b, i + 2b, ... for some i < b. The case i = 0 is the worst: for any other i, the
columns are those of i = 0, moved down by i entries and cut off at the end. Let X be the
Gram matrix of the columns for i = 0. The squared sensitivity is the maximum of `<X, G>`
over correlation matrices G; see `analysis.vector_contributions`. This module computes a
smooth approximation, the maximum of

    <X, G> + mu log det G,    G_ii = 1,    mu = 1e-7 times the mean of X_ii.

The maximizer `G = mu (diag(y) - X)^-1`, where `y` are the Lagrange multipliers of
`G_ii = 1`, is unique. At fixed mu, G is the gradient of the maximum with respect to X.

In all other cases, the exact value is unknown or too expensive to compute. The module
then uses an upper bound: the squared sensitivity of a Toeplitz majorant of `C`, as in
`analysis.sensitivity.upper_bound`.

For coefficients of `C`, `SquaredSensitivity.of_coefficients` always returns the squared
norm of the sum of the columns 0, b, ..., (k - 1) b, whether or not it is exact.
"""

from __future__ import annotations

import numpy as np

from tf_bandmf.analysis import participation_patterns, vector_contributions

# The factor mu of `log det G` in the smooth approximation, relative to the mean
# diagonal entry of the Gram matrix X.
_BARRIER = 1e-7


class SquaredSensitivity:
    """The squared sensitivity as a function of the first column of `C`.

    Args:
      num_steps: n.
      separation: b, the minimum number of steps between participations of an example.
      participations: k, the maximum number of participations of an example.
      fixed_order: True if an example participates only in steps `i, i + b, ...` for
        some i.
    """

    def __init__(
        self, num_steps: int, separation: int, participations: int, fixed_order: bool
    ) -> None:
        self._shape = num_steps, separation, participations
        self._first = np.eye(1, num_steps)[0]
        self._pattern = np.zeros(num_steps)
        self._pattern[::separation][:participations] = 1.0
        self._by_vectors = (
            fixed_order
            and participation_patterns.vectors_are_affordable(num_steps, participations)
        )

    def __call__(self, column: np.ndarray) -> tuple[float, np.ndarray]:
        """Returns the squared sensitivity and its gradient at a column, shape [n].

        If an entry of the column is not finite, the squared sensitivity is inf.
        """
        _, b, k = self._shape
        if not np.all(np.isfinite(column)):
            return np.inf, np.zeros(column.size)
        if k == 1:
            return float(column @ column), 2.0 * column
        is_positive = bool(np.all(column >= 0.0))
        if is_positive and (
            self._by_vectors or bool(np.all(np.diff(column[b:]) <= 0.0))
        ):
            return self._leftmost(column)
        if self._by_vectors:
            return self._best_vectors(column)
        majorant, largest = _majorant(np.abs(column), b)
        value, by_majorant = self._leftmost(majorant)
        gradient = np.bincount(largest, by_majorant, minlength=column.size)
        return value, gradient * np.sign(column)

    def of_coefficients(self, c: np.ndarray, inverse: bool) -> tuple[float, np.ndarray]:
        """Returns the squared sensitivity and its gradient at p coefficients.

        The coefficients are those of `C` or, if `inverse` is True, of `C^-1`. For
        coefficients of `C`, the value is the squared norm of the sum of the columns 0, b,
        2b, .... It is exact if the coefficients are positive and decreasing, and
        otherwise possibly only a lower bound.
        """
        # SciPy is imported here because the import is slow.
        from scipy.signal import lfilter

        if not inverse:
            joint = lfilter(c, [1.0], self._pattern)
            return float(joint @ joint), 2.0 * correlate(joint, self._pattern, c.size)
        column = lfilter([1.0], c, self._first)
        squared, by_column = self(column)
        return squared, -correlate(by_column, lfilter([1.0], c, column), c.size)

    def _leftmost(self, column: np.ndarray) -> tuple[float, np.ndarray]:
        n, b, k = self._shape
        joint = _repeated(column, b, k)
        padded = np.pad(joint, (0, -n % b))
        # The gradient is 2 times the transpose of the linear map `_repeated`, applied
        # to `joint`. The transpose is `_repeated` for arrays in reverse order.
        gradient = _repeated(padded[::-1], b, k)[::-1][:n]
        return float(joint @ joint), 2.0 * gradient

    def _best_vectors(self, column: np.ndarray) -> tuple[float, np.ndarray]:
        n, b, k = self._shape
        columns = np.stack([np.pad(column[: n - i], (i, 0)) for i in range(0, n, b)])
        columns = columns[:k]
        gram = columns @ columns.T
        value, by_gram = _smoothed_maximum(gram)
        gradient = np.zeros(n)
        for i, pull in enumerate(by_gram @ columns):
            gradient[: n - i * b] += pull[i * b :]
        return value, 2.0 * gradient


def _smoothed_maximum(gram: np.ndarray) -> tuple[float, np.ndarray]:
    """Returns the maximum of `<X, G> + mu log det G` over G with `G_ii = 1`.

    Args:
      gram: X, shape [k, k], the Gram matrix of the k columns of the steps in which one
        example participates. mu is _BARRIER times the mean of `X_ii`.

    Returns:
      The maximum, and its gradient with respect to X, shape [k, k].
    """
    _, (best,) = vector_contributions.centered(gram[None], _BARRIER)
    mean = _BARRIER * np.trace(gram) / len(gram)
    log_det = float(np.linalg.slogdet(best)[1])
    by_trace = _BARRIER * log_det / len(gram) * np.eye(len(gram))
    return float(np.sum(gram * best) + mean * log_det), best + by_trace


def _repeated(x: np.ndarray, b: int, k: int) -> np.ndarray:
    """Returns the array `y` with `y[t] = sum_{j < k} x[t - j b]`."""
    table = np.pad(x, (0, -x.size % b)).reshape(-1, b).cumsum(axis=0)
    if k < len(table):
        table[k:] -= table[:-k].copy()
    return table.reshape(-1)[: x.size]


def _majorant(absolute: np.ndarray, b: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the smallest array >= `absolute` that does not increase from entry b on.

    Returns:
      The array, and an array `index` such that the first array is `absolute[index]`.
    """
    index = np.arange(absolute.size)
    tail = absolute[b:][::-1]
    most = np.maximum.accumulate(tail)
    last = np.maximum.accumulate(np.where(tail >= most, np.arange(tail.size), 0))
    index[b:] = (absolute.size - 1 - last)[::-1]
    return absolute[index], index


def correlate(x: np.ndarray, y: np.ndarray, count: int) -> np.ndarray:
    """Returns the array of the sums `sum_t x[t] y[t - i]` for i = 0, ..., count - 1."""
    n = x.size
    return np.array([x[i:] @ y[: n - i] for i in range(count)])
