"""How far a banded strategy is from the best one: a certified bound.

The weighted error `f(X) = tr(Omega A X^-1 A^T)` is convex in `X = C^T C` with gradient
`-H`, `H = X^-1 A^T Omega A X^-1`, and `<H, X> = f(X)`. Take any feasible `X'` with the
same bands, that is with `sum over j in group g of X'_jj <= 1` for every group of
columns that one example may join together. By `|X'_ij| <= sqrt(X'_ii X'_jj)` and
`2 |H_ij| d_i d_j <= |H_ij| (r d_i^2 + d_j^2 / r)`,

    <H, X'> <= U = sum over groups of max over i in the group of
                   H_ii + sum_{j != i} |H_ij| s_j / s_i

for any positive `s`; `s_i = sqrt(X_ii)` makes it tight at the optimum, where `H` has no
off-diagonal entries in the band. The tangent at `t X` instead of `X` bounds
`f(X') >= 2 f / t - U / t^2` for every `t > 0`; the best is `t = U / f`:

    f(X') >= f(X)^2 / U,    relative gap <= 1 - f / U.

The groups are single columns for column-normalized strategies, and columns
`i, i + b, i + 2 b, ...` for (k, b)-participation (arXiv:2306.08153, Prop. B.1).
"""

from __future__ import annotations

import numpy as np


def dual_bound(gram_band: np.ndarray, norms: np.ndarray, separation: int) -> float:
    """The bound `U` on `<H, X'>` over all feasible `X'`.

    Args:
      gram_band: `H[i, i-j]`, shape [n, bands], zero left of the matrix.
      norms: column norms of `C`, shape [n].
      separation: b; columns `i, i + b, ...` form a group whose squared norms sum to at
        most 1. With n every column is a group of its own.

    Returns:
      U.
    """
    n, bands = gram_band.shape
    reach = gram_band[:, 0].copy()
    for j in range(1, min(bands, n)):
        magnitude = np.abs(gram_band[j:, j])
        reach[j:] += magnitude * norms[:-j] / norms[j:]
        reach[:-j] += magnitude * norms[j:] / norms[:-j]
    groups = min(separation, n)
    reach = np.pad(reach, (0, -n % groups)).reshape(-1, groups)
    return float(np.sum(np.max(reach, axis=0)))


def lower_bound(weighted_error: float, dual: float) -> float:
    """No feasible strategy has a smaller weighted error: `f^2 / U`."""
    return weighted_error * weighted_error / dual
