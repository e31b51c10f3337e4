"""The exact sensitivity of one pattern whose Gram matrix has entries of both signs.

The contributions of one example to the k steps of a participation pattern are vectors
`u_i` with `||u_i|| <= 1`. The squared sensitivity of the pattern is

    max sum_ij X_ij <u_i, u_j> = max <X, G>,    G >= 0 (semidefinite), G_ii = 1,

for the k x k Gram matrix X of the pattern's columns, provided that the vectors have at
least k dimensions. Contributions that are signs (one-dimensional vectors) give at most
this maximum. The bound `sum |X_ij|` (arXiv:2306.08153, Prop. E.1) exceeds the maximum
if no choice of signs makes all terms >= 0. For all y,

    <X, G> <= sum_i y_i + k max(0, -smallest eigenvalue of diag(y) - X).

A barrier method computes the best y: `sum(y) - mu log det(diag(y) - X)` has its minimum
where `G = mu (diag(y) - X)^-1` is feasible. At this minimum, the upper bound from y and
the lower bound `<X, G>` differ by `mu k`.
"""

from __future__ import annotations

import numpy as np

# The difference `mu k` of the two bounds, relative to the mean of X_ii. The final mu,
# relative to this mean, is therefore _BARRIER / k.
_BARRIER = 1e-9
# The maximum number of Newton steps per mu, and the Newton decrements below which the
# steps end: for every mu but the last, and for the last mu.
_MOST_NEWTON_STEPS, _NEAR, _CENTERED = 100, 0.5, 1e-8


def largest(grams: np.ndarray, lower: float = 0.0) -> tuple[float, float]:
    """Returns lower and upper bounds on the maximum squared sensitivity of patterns.

    Args:
      grams: X of each pattern, [patterns, k, k], symmetric and positive semidefinite.
      lower: lower bound on the maximum, from other patterns.

    Returns:
      A value that some vectors attain, and a value that no vectors exceed. The two
      values are nearly equal, and at least `lower`.
    """
    k = grams.shape[-1]
    y, vectors = centered(grams, _BARRIER / k)
    attained = np.sum(grams * vectors, axis=(1, 2))
    least = np.linalg.eigvalsh(y[:, :, None] * np.eye(k) - grams)[:, 0]
    # `error` bounds the rounding error of the eigenvalues.
    error = 1e-14 * k * y.max(axis=1)
    upper = y.sum(axis=1) + k * np.maximum(error - least, 0.0)
    return max(lower, float(attained.max())), max(lower, float(upper.max()))


def centered(grams: np.ndarray, barrier: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns the minimizer y at the final mu, and its G, for each Gram matrix X.

    The function runs Newton's method, damped as the theory of self-concordant functions
    prescribes, for a geometric sequence of mu from 1 to `barrier`, with a ratio of
    about 1/10.

    Args:
      grams: see `largest`.
      barrier: final mu, relative to the mean of X_ii, below 1.

    Returns:
      y, shape [patterns, k], and G, shape [patterns, k, k].
    """
    k = grams.shape[-1]
    scale = np.trace(grams, axis1=1, axis2=2)[:, None] / k
    x = grams / scale[..., None]
    # With this start, diag(y) - X is positive definite.
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
