"""The exact sensitivity of one pattern whose Gram matrix has entries of both signs.

The contributions of one example to the k steps of a pattern are vectors `u_i` with `||u_i||
<= 1`, and their squared sensitivity is

    max sum_ij X_ij <u_i, u_j> = max <X, G>,    G >= 0 (semidefinite), G_ii <= 1,

for the k x k Gram matrix X of the pattern's columns, in k dimensions or more. Signs, which
are vectors of one dimension, give less, and `sum |X_ij|` (arXiv:2306.08153, Prop. E.1)
is more where signs cannot all agree. Coordinate ascent on the vectors finds the maximum
(in more than sqrt(2 k) dimensions no other point is stable: Boumal, Voroninski, Bandeira,
2016, arXiv:1606.04970, Theorem 2); duality certifies it: for all y,

    <X, G> <= sum_i y_i + k max(0, -least eigenvalue of diag(y) - X).
"""

from __future__ import annotations

import numpy as np

_MOST_SWEEPS, _TOLERANCE = 2_000, 1e-9
# Sweeps between looks at the certificate.
_EVERY = 20


def dimensions(k: int) -> int:
    """The least dimension of the vectors: more than sqrt(2 k)."""
    return min(k, int(np.sqrt(2.0 * k)) + 2)


def largest(grams: np.ndarray, known: float = 0.0) -> tuple[float, float]:
    """Bounds on the largest squared sensitivity of some patterns; they nearly agree.

    Args:
      grams: X of each pattern, [patterns, k, k], symmetric and positive semidefinite.
      known: a lower bound on the maximum, from other patterns.

    Returns:
      The larger of `known` and of what some vectors attain, and what no vectors exceed
      (or `known`): beyond 2,000 sweeps they may differ.
    """
    count, k, _ = grams.shape
    rng = np.random.default_rng(0)
    # All signs alike, and a little of everything else.
    vectors = 0.1 * rng.normal(size=(count, k, dimensions(k)))
    vectors[:, :, 0] += 1.0
    vectors /= np.linalg.norm(vectors, axis=2, keepdims=True)
    upper = np.full(count, np.inf)
    for sweep in range(1, _MOST_SWEEPS + 1):
        norms = np.diagonal(grams, axis1=1, axis2=2)
        for i in range(k):
            pull = np.einsum("pj,pjd->pd", grams[:, i], vectors)
            pull -= norms[:, i, None] * vectors[:, i]
            length = np.linalg.norm(pull, axis=1, keepdims=True)
            np.divide(pull, length, out=vectors[:, i], where=length > 0.0)
        if sweep % _EVERY and sweep < _MOST_SWEEPS:
            continue
        pulls = grams @ vectors
        known = max(known, float(np.einsum("pkd,pkd->p", pulls, vectors).max()))
        weights = norms + np.linalg.norm(pulls - norms[..., None] * vectors, axis=2)
        slack = weights[:, :, None] * np.eye(k) - grams
        least = np.linalg.eigvalsh(slack)[:, 0]
        # Rounding of eigenvalues, on the safe side.
        error = 1e-14 * k * weights.max(axis=1)
        found = weights.sum(axis=1) + k * np.maximum(error - least, 0.0)
        upper = np.minimum(upper, found)
        # The others cannot have the maximum.
        active = upper > known * (1.0 + _TOLERANCE)
        if not np.any(active):
            return known, known * (1.0 + _TOLERANCE)
        grams, vectors, upper = grams[active], vectors[active], upper[active]
    return known, float(upper.max())
