"""Certified bounds on the gap between a banded strategy's error and the minimum error.

For a strategy `C`, a workload `A` and a diagonal matrix `Omega` of weights, the weighted
error `f(X) = tr(Omega A X^-1 A^T)` is a convex function of `X = C^T C`. Its gradient is
`-H` with `H = X^-1 A^T Omega A X^-1`, and `<H, X> = f(X)`. Let `X'` be any feasible
matrix with the same bands. Feasible means that `sum over j in g of X'_jj <= 1` for
every group g of columns in which one example can participate. Let `d_i = sqrt(X'_ii)`
and choose any positive numbers `s_i`. By `|X'_ij| <= d_i d_j` and
`2 d_i d_j <= r d_i^2 + d_j^2 / r` with `r = s_j / s_i`,

    <H, X'> <= U = sum over groups of max over i in the group of
                   H_ii + sum_{j != i} |H_ij| s_j / s_i.

With `s_i = sqrt(X_ii)`, the bound is tight at the optimum, where the off-diagonal
entries of `H` in the band are 0. The tangent of `f` at `t X` gives
`f(X') >= 2 f / t - U / t^2` for every `t > 0`. The best choice is `t = U / f`:

    f(X') >= f(X)^2 / U,    relative gap <= 1 - f / U.

This gap decreases in proportion to the gradient. A second bound has a gap that decreases
like the square of the gradient, as the true gap does. For `G = A^T Omega A` and any `Z`,
`0 <= ||G^1/2 X'^-1/2 - G^-1/2 Z X'^1/2||^2` implies

    f(X') >= 2 tr Z - <Z^T G^-1 Z, X'>.

`Z = G X^-1` gives the tangent at X. As `H = X^-1 G X^-1`, the choice
`Z = G X^-1 (1 - H^-1 E / 2)` with any symmetric `E` gives

    tr Z = f(X) - <X, E> / 2,        Z^T G^-1 Z = H - E + E H^-1 E / 4.

If `E` consists of the off-diagonal entries of `H` in the band, the remaining
off-diagonal entries of `H - E + E H^-1 E / 4` are of second order. These entries are
then added to `E`, and this step is repeated. All factors of `E H^-1 E` are banded: with
`M = C A^-1` and `H^-1 = X G^-1 X`, it equals `V^T V` for `V = Omega^-1/2 M^T C E`. Let
`U` now be the bound above with `H - E + E H^-1 E / 4` in place of `H`. With `t Z` in
place of `Z`, the best `t` gives

    f(X') >= (tr Z)^2 / U    where tr Z > 0.

For column-normalized strategies, each group is a single column. For (k, b)-participation,
the groups are the columns `i, i + b, i + 2 b, ...` (arXiv:2306.08153, Prop. B.1).
"""

from __future__ import annotations

import numpy as np

# The minimum weight of a step, relative to the maximum weight. If a weight is smaller,
# `lower_bound` skips the second bound of the docstring above, which divides by weights.
_LEAST_WEIGHT = 1e-12
# For the second bound, `lower_bound` tries _CORRECTIONS matrices E. A row of E is
# scaled down if the sum of the absolute entries of this row of E H^-1 E / 4 exceeds
# _KEPT times the sum of the absolute off-diagonal entries of this row of H in the band.
_CORRECTIONS, _KEPT = 3, 0.5

# The functions below store a matrix as a dictionary from offsets to diagonals of length
# n. Entry [i, i + offset] of the matrix is at index i of the diagonal; entries outside
# the matrix are 0. A symmetric matrix is stored as its diagonals with offsets <= 0.


def dual_bound(
    lower: dict[int, np.ndarray], norms: np.ndarray, separation: int
) -> float:
    """Returns the upper bound `U` on `<H, X'>` for all feasible `X'`.

    The module's docstring derives this bound, and defines H, X' and C.

    Args:
      lower: the diagonals of `H` that are in the band and have offsets <= 0.
      norms: column norms of `C`, shape [n].
      separation: b; columns `i, i + b, ...` form a group whose squared norms sum to at
        most 1. If b = n, every column forms a separate group.

    Returns:
      The upper bound.
    """
    n = norms.size
    groups = min(separation, n)
    reach = np.pad(_row_sums(lower, norms), (0, -n % groups)).reshape(-1, groups)
    return float(np.sum(np.max(reach, axis=0)))


def lower_bound(
    weighted_error: float,
    norms: np.ndarray,
    separation: int,
    weights: np.ndarray,
    gram_band: np.ndarray,
    rows: np.ndarray,
    product: np.ndarray,
) -> float:
    """Returns the larger of the two lower bounds on the minimum weighted error.

    The module's docstring derives both bounds, and defines f, X, Omega, H, C and A. If
    a weight is (nearly) 0, only the first bound is computed. The time is O(n bands^2).

    Args:
      weighted_error: `f(X)`.
      norms: column norms of `C`, shape [n].
      separation: b; columns `i, i + b, ...` form a group, as in `dual_bound`.
      weights: the diagonal of `Omega`, shape [n].
      gram_band: entry `[i, j]` is `H[i, i-j]`, shape [n, bands]. In this and the next two
        arguments, entries with `j > i` are ignored.
      rows: entry `[i, j]` is `C[i, i-j]`, shape [n, bands].
      product: entry `[i, j]` is `M[i, i-j]` with `M = C A^-1`, shape [n, w], where w is
        the number of diagonals of M.
    """
    n = norms.size
    lower, c, m = (_diagonals(one) for one in (gram_band, rows, product))
    best = weighted_error**2 / dual_bound(lower, norms, separation)
    if not weights.min() > _LEAST_WEIGHT * weights.max():
        return best
    gram = _product(_transposed(c), c, lower)
    root = _product(_transposed(m), c)
    root = {k: diagonal / np.sqrt(weights) for k, diagonal in root.items()}
    removed = {k: diagonal for k, diagonal in lower.items() if k}
    ones = kept = np.ones(n)
    reach = _row_sums(removed, ones)
    for _ in range(_CORRECTIONS):
        v = _product(root, {**removed, **_transposed(removed)})
        squared = _product(_transposed(v), v, lower)
        quarter = {0: np.zeros(n)} | {k: 0.25 * one for k, one in squared.items()}
        left = {k: lower[k] - removed.get(k, 0.0) + quarter[k] for k in lower}
        # Compute tr Z = f(X) - <X, E> / 2. `removed` contains only the lower half of
        # the symmetric matrix E, so each of its entries counts twice in <X, E>.
        trace = weighted_error - sum(
            float(gram[k] @ diagonal) for k, diagonal in removed.items()
        )
        best = max(best, max(trace, 0.0) ** 2 / dual_bound(left, norms, separation))
        # In rows where the entries of E H^-1 E / 4 are large, scale E down. Otherwise,
        # they could be larger than the off-diagonal entries of H that E cancels.
        more = _row_sums(quarter, ones)
        kept = np.minimum(
            kept, _KEPT * reach / np.maximum(more, _KEPT * reach + 1e-300)
        )
        removed = {
            k: np.minimum(kept, _moved(kept, k)) * (lower[k] + quarter[k])
            for k in removed
        }
    return best


def _row_sums(lower: dict[int, np.ndarray], norms: np.ndarray) -> np.ndarray:
    """Returns `sum_j |H_ij| norms_j / norms_i` for each i, for a symmetric matrix H."""
    result = np.zeros(norms.size)
    for k, diagonal in lower.items():
        magnitude = np.abs(diagonal)
        if k == 0:
            result += magnitude
        else:
            result += magnitude * _moved(norms, k) / norms
            result += _moved(magnitude * norms, -k) / norms
    return result


def _diagonals(rows: np.ndarray) -> dict[int, np.ndarray]:
    """Returns the lower diagonals of a matrix H, given as `rows[i, j] = H[i, i-j]`."""
    steps = np.arange(len(rows))
    below = enumerate(rows.T[: len(rows)])
    return {-j: np.where(steps >= j, diagonal, 0.0) for j, diagonal in below}


def _moved(diagonal: np.ndarray, offset: int) -> np.ndarray:
    """Returns the array of `diagonal[i + offset]`; 0 if this index does not exist."""
    result = np.zeros_like(diagonal)
    if offset >= 0:
        result[: diagonal.size - offset] = diagonal[offset:]
    else:
        result[-offset:] = diagonal[:offset]
    return result


def _transposed(matrix: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    return {-k: _moved(diagonal, -k) for k, diagonal in matrix.items()}


def _product(
    left: dict[int, np.ndarray],
    right: dict[int, np.ndarray],
    wanted: dict[int, np.ndarray] | None = None,
) -> dict[int, np.ndarray]:
    """Returns the diagonals of the product of two banded matrices.

    If `wanted` is passed, only the diagonals whose offsets are keys of `wanted` are
    computed.
    """
    result: dict[int, np.ndarray] = {}
    for a, first in left.items():
        n = first.size
        low, high = max(0, -a), min(n, n - a)
        for b, second in right.items():
            if abs(a + b) >= n or (wanted is not None and a + b not in wanted):
                continue
            sums = result.setdefault(a + b, np.zeros(n))
            sums[low:high] += first[low:high] * second[low + a : high + a]
    return result
