"""The squared sensitivity of a Toeplitz `C` with entries of any sign, and its gradient.

If the first column of `C` is nonnegative and, under min-separation, does not increase
from lag b on, the sensitivity is the norm of the sum of the columns 0, b, 2b, ...

With a fixed epoch order and entries of any sign, the columns 0, b, 2b, ... are the
worst of the b patterns, because moving a column to the left adds rows and removes none.
The squared sensitivity is then the maximum of `<X, G>` in
`analysis.vector_contributions`. Here it is smoothed by a barrier, to the maximum of

    <X, G> + mu log det G,    G_ii = 1,    mu = 1e-7 times the mean of X_ii,

which has a unique maximizer G, `mu (diag(y) - X)^-1`, and the derivative `<dX, G>`.

In all other cases, no exact value is known or affordable, and the sensitivity of the
Toeplitz majorant is used instead (see `analysis.sensitivity.upper_bound`).
"""

from __future__ import annotations

import numpy as np

from tf_bandmf.analysis import participation_patterns, vector_contributions

# The barrier parameter mu, relative to the mean of X_ii.
_BARRIER = 1e-7


class SquaredSensitivity:
    """The squared sensitivity as a function of the first column of `C`.

    Args:
      num_steps: n.
      separation: b.
      participations: k.
      fixed_order: True if an example takes part only at steps `i, i + b, ...`
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
        """Returns value and gradient at a column [n], or inf if it is not finite."""
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
        """Returns value and gradient at coefficients [p] of `C` or of `C^-1`.

        For coefficients of `C`, the value is that of the columns 0, b, 2b, ..., which
        is only a lower bound if the entries of `C` are not positive and decreasing.
        """
        from scipy.signal import lfilter  # slow to import

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
        # The gradient is the adjoint of `_repeated`, which computes the same sums from
        # the end.
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
    """Returns the maximum of `<X, G> + mu log det G` over G, and its gradient in X."""
    _, (best,) = vector_contributions.centered(gram[None], _BARRIER)
    mean = _BARRIER * np.trace(gram) / len(gram)
    log_det = float(np.linalg.slogdet(best)[1])
    by_trace = _BARRIER * log_det / len(gram) * np.eye(len(gram))
    return float(np.sum(gram * best) + mean * log_det), best + by_trace


def _repeated(x: np.ndarray, b: int, k: int) -> np.ndarray:
    """Returns `sum_{j < k} x[t - j b]`."""
    table = np.pad(x, (0, -x.size % b)).reshape(-1, b).cumsum(axis=0)
    if k < len(table):
        table[k:] -= table[:-k].copy()
    return table.reshape(-1)[: x.size]


def _majorant(absolute: np.ndarray, b: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the smallest majorant that does not increase from lag b on.

    Returns:
      The majorant, and for each of its entries the index of the equal entry of
      `absolute`.
    """
    index = np.arange(absolute.size)
    tail = absolute[b:][::-1]
    most = np.maximum.accumulate(tail)
    last = np.maximum.accumulate(np.where(tail >= most, np.arange(tail.size), 0))
    index[b:] = (absolute.size - 1 - last)[::-1]
    return absolute[index], index


def correlate(x: np.ndarray, y: np.ndarray, count: int) -> np.ndarray:
    """Returns `sum_t x[t] y[t - i]` for i < count."""
    n = x.size
    return np.array([x[i:] @ y[: n - i] for i in range(count)])
