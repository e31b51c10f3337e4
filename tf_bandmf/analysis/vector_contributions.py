"""The exact sensitivity of one pattern whose Gram matrix has entries of both signs.

The contributions of one example to the k steps of a pattern are vectors `u_i` with `||u_i||
<= 1`, and their squared sensitivity is

    max sum_ij X_ij <u_i, u_j> = max <X, G>,    G >= 0 (semidefinite), G_ii = 1,

for the k x k Gram matrix X of the pattern's columns, in k dimensions or more. Signs, which
are vectors of one dimension, give less, and `sum |X_ij|` (arXiv:2306.08153, Prop. E.1)
is more where signs cannot all agree. For all y,

    <X, G> <= sum_i y_i + k max(0, -least eigenvalue of diag(y) - X),

and a barrier finds the best y: `sum(y) - mu log det(diag(y) - X)` has its minimum where
`G = mu (diag(y) - X)^-1` is feasible, and both bounds are `mu k` apart.
"""

from __future__ import annotations

import numpy as np

# Relative to the mean of X_ii, divided by k: the distance of the bounds.
_BARRIER = 1e-9
# Newton decrements that end a barrier on the way, and the last one.
_MOST_NEWTON_STEPS, _NEAR, _CENTERED = 100, 0.5, 1e-8


def largest(grams: np.ndarray, lower: float = 0.0) -> tuple[float, float]:
    """Bounds on the largest squared sensitivity of some patterns; they nearly agree.

    Args:
      grams: X of each pattern, [patterns, k, k], symmetric and positive semidefinite.
      lower: a lower bound on the maximum, from other patterns.

    Returns:
      The larger of `lower` and of what some vectors attain, and what no vectors exceed
      (or `lower`).
    """
    k = grams.shape[-1]
    y, vectors = centered(grams, _BARRIER / k)
    attained = np.sum(grams * vectors, axis=(1, 2))
    least = np.linalg.eigvalsh(y[:, :, None] * np.eye(k) - grams)[:, 0]
    # Rounding of eigenvalues, on the safe side.
    error = 1e-14 * k * y.max(axis=1)
    upper = y.sum(axis=1) + k * np.maximum(error - least, 0.0)
    return max(lower, float(attained.max())), max(lower, float(upper.max()))


def centered(grams: np.ndarray, barrier: float) -> tuple[np.ndarray, np.ndarray]:
    """The best y and G of each Gram matrix at a barrier, [patterns, k] and [.., k, k].

    Newton's method, damped as self-concordance asks, for barriers that fall to a
    tenth.

    Args:
      grams: as `largest` takes them.
      barrier: mu, relative to the mean of X_ii, below 1.
    """
    k = grams.shape[-1]
    scale = np.trace(grams, axis1=1, axis2=2)[:, None] / k
    x = grams / scale[..., None]
    y = np.abs(x).sum(axis=2) + 1.0  # diag(y) - X is positive definite
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
