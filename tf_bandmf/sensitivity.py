"""Sensitivity of a strategy under a participation.

`sens(C) = sup ||C (x - x')||_F` over one example's contribution with `l2_norm_clip = 1`
(zero-out adjacency). A closed form is used only where the conditions of its theorem
hold for the actual coefficients; otherwise the result is an upper bound and says so.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tf_bandmf import bands
from tf_bandmf.participation import FixedEpochOrder, Participation

# Alg. 4 looks at all n^2 entries of the Gram matrix.
_GRAM_LIMIT = 20_000


@dataclasses.dataclass(frozen=True)
class Sensitivity:
    """The sensitivity of a strategy, or an upper bound on it.

    Attributes:
      value: sens(C), or the bound; for l2_norm_clip = 1.
      is_exact: False if `value` is an upper bound that may be loose. A guarantee
        computed from a bound holds.
      method: theorem or algorithm that the value rests on.
    """

    value: float
    is_exact: bool
    method: str

    def __str__(self) -> str:
        relation = "=" if self.is_exact else "<="
        return f"sens(C) {relation} {self.value:.6g} ({self.method})"


def vec_sens(v: np.ndarray, min_separation: int, max_participations: int) -> np.ndarray:
    """Largest sum of `max_participations` entries at least `min_separation` apart.

    amplified-banded-mf, Alg. 3 (VecSens), for non-negative `v`, vectorized.

    Args:
      v: shape [n] or [m, n]: one problem per row.
      min_separation: b.
      max_participations: k.

    Returns:
      The maxima, shape [] or [m].
    """
    v = np.asarray(v, dtype=np.float64)
    n = v.shape[-1]
    # best[i]: the best with at most m picks from v[i:].
    best = np.zeros_like(v)
    for _ in range(max_participations):
        candidate = v.copy()
        if min_separation < n:
            candidate[..., : n - min_separation] += best[..., min_separation:]
        # The larger of picking i and skipping it, for every i from the end.
        best = np.maximum.accumulate(candidate[..., ::-1], axis=-1)[..., ::-1]
    return best[..., 0]


def sensitivity(
    strategy: bands.LowerTriangular, participation: Participation, num_steps: int
) -> Sensitivity:
    """The sensitivity of the strategy matrix `C`, exact where a theorem says so.

    | `C` | result |
    |---|---|
    | bands <= b | exact: VecSens of the squared column norms (Alg. 5, Prop. B.1) |
    | Toeplitz, non-negative, non-increasing | exact: columns 0, b, 2b, ... |
    | column-normalized DP-lambda-CGD | exact: the same columns (Lemma 8) |
    | non-negative, fixed epoch order | exact: the best of the b patterns |
    | other Toeplitz | bound: by its non-increasing majorant |
    | anything else | bound: Alg. 4 |

    Args:
      strategy: `C`, n x n.
      participation: gives b and k.
      num_steps: n; must be the number of rows of `C`.

    Raises:
      ValueError: if the sizes differ, or only the O(n^2 k) bound is known and `n` is
        too large for it.
    """
    if strategy.num_rows != num_steps:
        raise ValueError(
            f"The strategy is for {strategy.num_rows} steps, the run has {num_steps}."
        )
    b, k = participation.separation(), participation.participations(num_steps)
    fixed_order = isinstance(participation, FixedEpochOrder)
    if strategy.bands <= b or k == 1:
        squared = strategy.column_norms() ** 2
        if fixed_order:
            value = max(squared[i::b].sum() for i in range(min(b, num_steps)))
            return Sensitivity(float(np.sqrt(value)), True, "Proposition B.1")
        value = vec_sens(squared, b, k)
        return Sensitivity(float(np.sqrt(value)), True, "Alg. 5: bands <= b")
    column = strategy.toeplitz_column()
    if column is not None:
        if np.all(column >= 0.0) and np.all(np.diff(column) <= 0.0):
            value = _leftmost_columns(strategy, b, k)
            return Sensitivity(value, True, "non-increasing Toeplitz, Theorem 1")
    if _is_normalized_lambda_cgd(strategy):
        value = _leftmost_columns(strategy, b, k)
        return Sensitivity(value, True, "normalized DP-lambda-CGD, Lemma 8")
    if fixed_order and strategy.is_nonnegative():
        value = _best_fixed_pattern(strategy, b)
        return Sensitivity(value, True, "maximum over the b fixed patterns")
    if column is not None:
        majorant = np.maximum.accumulate(np.abs(column)[::-1])[::-1]
        bound = bands.ToeplitzBanded(majorant, num_steps)
        value = _leftmost_columns(bound, b, k)
        return Sensitivity(value, False, "bound by a non-increasing Toeplitz matrix")
    return Sensitivity(_gram_bound(strategy, b, k), False, "bound, Alg. 4")


def _leftmost_columns(strategy: bands.LowerTriangular, b: int, k: int) -> float:
    """`||sum of columns 0, b, ..., (k - 1) b||`."""
    pattern = np.zeros(strategy.num_rows)
    pattern[::b][:k] = 1.0
    return float(np.linalg.norm(strategy.matmul(pattern)))


def _is_normalized_lambda_cgd(strategy: bands.LowerTriangular) -> bool:
    """Whether Lemma 8 applies: `C_lambda D^-1` with its own column norms D."""
    if not isinstance(strategy, bands.ColumnScaled):
        return False
    inner = strategy.inner
    if not isinstance(inner, bands.Inverse) or inner.inner.bands != 2:
        return False
    banded = inner.inner
    if not isinstance(banded, bands.ToeplitzBanded):
        return False
    leading, following = banded.coefficients
    norms = strategy.column_norms()
    return bool(
        leading == 1.0 and -1.0 < following <= 0.0 and np.ptp(norms) < 1e-9 * norms[0]
    )


def _best_fixed_pattern(strategy: bands.LowerTriangular, b: int) -> float:
    best = 0.0
    chunk = max(1, 4_000_000 // strategy.num_rows)
    for start in range(0, b, chunk):
        starts = np.arange(start, min(start + chunk, b))
        patterns = np.zeros((strategy.num_rows, starts.size))
        for m, first in enumerate(starts):
            patterns[first::b, m] = 1.0
        best = max(best, np.linalg.norm(strategy.matmul(patterns), axis=0).max())
    return float(best)


def _gram_bound(strategy: bands.LowerTriangular, b: int, k: int) -> float:
    """amplified-banded-mf, Alg. 4: VecSens of the rows of |X|, then of their values."""
    n = strategy.num_rows
    if n > _GRAM_LIMIT:
        raise ValueError(
            f"Only a bound of O(n^2 k) operations is known for this strategy, and "
            f"n = {n} is too many steps for it. Use at most {b} bands, a Toeplitz "
            f"strategy, or one without column normalization."
        )
    dense = strategy.to_dense()
    rows = np.empty(n)
    chunk = max(1, 8_000_000 // n)
    for start in range(0, n, chunk):
        gram = np.abs(dense[:, start : start + chunk].T @ dense)
        rows[start : start + chunk] = vec_sens(gram, b, k)
    return float(np.sqrt(vec_sens(rows, b, k)))
