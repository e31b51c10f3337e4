"""The exact sensitivity of a participation pattern, from the Gram matrix of its steps.

The contributions of one example to the k steps of a participation pattern are vectors
`u_i` with `||u_i|| <= 1`. Let X be the k x k Gram matrix of the strategy's columns for
these steps. If the vectors have at least k dimensions, the squared sensitivity of the
pattern is

    max sum_ij X_ij <u_i, u_j> = max <X, G>,    G >= 0 (semidefinite), G_ii = 1,

where `G_ij = <u_i, u_j>`. Contributions that are signs (one-dimensional vectors) give
at most this maximum. The bound `sum |X_ij|` (arXiv:2306.08153, Prop. E.1) exceeds the
maximum unless there are signs s_i for which all `X_ij s_i s_j` are >= 0. Every vector y
gives an upper bound:

    <X, G> <= sum_i y_i + k max(0, -smallest eigenvalue of diag(y) - X).

A barrier method computes the best y. For a parameter mu > 0,
`sum(y) - mu log det(diag(y) - X)` has its minimum where the matrix
`G = mu (diag(y) - X)^-1` is semidefinite with `G_ii = 1`. At this minimum, the upper
bound from y and the lower bound `<X, G>` differ by `mu k`.
"""

from __future__ import annotations

import numpy as np

# The barrier method ends when the upper and the lower bound differ by _BARRIER times
# the mean diagonal entry of the k x k Gram matrix. As they differ by `mu k`, the final
# mu is _BARRIER / k times this mean.
_BARRIER = 1e-9
# For each value of its parameter mu, the barrier method takes at most
# _MOST_NEWTON_STEPS Newton steps. It stops earlier if the Newton decrement, a measure
# of the distance to the minimum, is below _NEAR (_CENTERED for the last mu).
_MOST_NEWTON_STEPS, _NEAR, _CENTERED = 100, 0.5, 1e-8


def largest(grams: np.ndarray, lower: float = 0.0) -> tuple[float, float]:
    """Bounds the largest squared sensitivity of several patterns.

    Args:
      grams: the Gram matrix X of each pattern, symmetric and positive semidefinite, of
        shape [number of patterns, k, k].
      lower: the largest squared sensitivity of the patterns of earlier calls; 0 if
        there are none. The returned bounds hold for those patterns, too.

    Returns:
      A lower bound, which some contributions attain, and an upper bound, which no
      contributions exceed. The two are nearly equal.
    """
    k = grams.shape[-1]
    y, vectors = centered(grams, _BARRIER / k)
    attained = np.sum(grams * vectors, axis=(1, 2))
    least = np.linalg.eigvalsh(y[:, :, None] * np.eye(k) - grams)[:, 0]
    # `error` bounds the rounding error of the smallest eigenvalues (`least`).
    error = 1e-14 * k * y.max(axis=1)
    upper = y.sum(axis=1) + k * np.maximum(error - least, 0.0)
    return max(lower, float(attained.max())), max(lower, float(upper.max()))


def centered(grams: np.ndarray, barrier: float) -> tuple[np.ndarray, np.ndarray]:
    """Minimizes `sum(y) - mu log det(diag(y) - X)` over y for each Gram matrix X.

    The function runs Newton's method, damped as the theory of self-concordant functions
    prescribes. It does so for decreasing values of mu. They start at the mean of X_ii,
    and each is about a tenth of the one before.

    Args:
      grams: Gram matrices, shape [number of patterns, k, k].
      barrier: the final mu as a fraction (below 1) of the mean of X_ii.

    Returns:
      The minimizer y for the final mu, shape [number of patterns, k], and the matrix
      `G = mu (diag(y) - X)^-1`, shape [number of patterns, k, k]. The entries of G are
      scaled so that `G_ii = 1`.
    """
    k = grams.shape[-1]
    scale = np.trace(grams, axis1=1, axis2=2)[:, None] / k
    x = grams / scale[..., None]
    # At this initial y, diag(y) - X is positive definite.
    y = np.abs(x).sum(axis=2) + 1.0
    steps = int(np.ceil(-np.log10(barrier)))
    for mu in [*np.geomspace(1.0, barrier, 1 + steps)[:-1], barrier]:
        for _ in range(_MOST_NEWTON_STEPS):
            inverse = np.linalg.inv(y[:, :, None] * np.eye(k) - x)
            slope = 1.0 - mu * np.diagonal(inverse, axis1=1, axis2=2)
            step = -np.linalg.solve(mu * inverse**2, slope[..., None])[..., 0]
            decrement = np.sqrt(np.maximum(-np.sum(slope * step, axis=1) / mu, 0.0))
            if decrement.max() < (_CENTERED if mu == barrier else _NEAR):
                break
            y = y + step / (1.0 + decrement[:, None])
    root = np.sqrt(np.diagonal(inverse, axis1=1, axis2=2))
    return y * scale, inverse / (root[:, :, None] * root[:, None, :])
