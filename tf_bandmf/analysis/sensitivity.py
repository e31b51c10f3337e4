"""The sensitivity of a strategy, given the steps in which an example may take part.

The sensitivity of a strategy `C` is `sens(C) = sup ||C u||_F` over all matrices u of
contributions that the participation allows one example. Row i of u is the contribution
to step i: a vector of norm at most `l2_norm_clip = 1`, and 0 if the example does not
take part (zero-out adjacency). A closed form is used only if the coefficients of `C`
meet the conditions of its theorem. Otherwise the result is an upper bound, and
`Sensitivity.is_exact` is False.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from tf_bandmf import matrices
from tf_bandmf.analysis import participation_patterns as patterns

if TYPE_CHECKING:
    from tf_bandmf.participation import Participation

# The maximum number of rows of a strategy that is materialized to compute its full Gram
# matrix.
_DENSE_LIMIT = 8_192
# The maximum number of rows of a scaled Toeplitz strategy that is materialized. It is
# lower than _DENSE_LIMIT because `scaled_toeplitz_bound`, which takes only O(n k)
# operations, is nearly as good as the bound from the full Gram matrix.
_TOEPLITZ_DENSE_LIMIT = 2_048
# The maximum number of operations for the sensitivity of a banded matrix, or for a
# bound on it. A computation that would need more is skipped, and another bound is used.
_OPERATION_LIMIT = 2e9
# The maximum number of rows of a matrix that is materialized to compute only its column
# norms.
_NORMS_LIMIT = 20_000


@dataclasses.dataclass(frozen=True)
class Sensitivity:
    """The sensitivity of a strategy, or an upper bound on it.

    Attributes:
      value: the sensitivity or the bound, for l2_norm_clip = 1.
      is_exact: False if `value` is an upper bound that may be loose. A guarantee
        computed from an upper bound still holds.
      method: the theorem or algorithm that gives the value.
    """

    value: float
    is_exact: bool
    method: str

    def __str__(self) -> str:
        relation = "=" if self.is_exact else "<="
        return f"sens(C) {relation} {self.value:.6g} ({self.method})"


def sensitivity(
    matrix: matrices.LowerTriangular, participation: Participation
) -> Sensitivity:
    """Returns the sensitivity of `C`, exact if a theorem applies, else an upper bound.

    | `C` | result |
    |---|---|
    | bands <= b, or one participation | exact: maximum sum of column norms^2 (Alg. 5) |
    | Toeplitz >= 0, non-increasing from lag b on | exact: columns 0, b, 2b, ... |
    | column-normalized DP-lambda-CGD | exact: columns 0, b, 2b, ... (Lemma 8) |
    | binary tree | exact: dynamic program over the tree |
    | fixed epoch order, n k^2 <= 5e6 | exact: maximum over b patterns, any signs |
    | b < bands <= 2b, or two participations | exact: `patterns.path_maximum` |
    | anything else | bound: `upper_bound` |

    Here b is the minimum separation, k the maximum number of participations, and n the
    number of steps. The algorithms are from arXiv:2306.08153. The results for
    non-increasing Toeplitz matrices (Theorem 1) and for DP-lambda-CGD (Lemma 8) are
    from arXiv:2601.22334. The result for b < bands <= 2b holds for entries of any sign.
    It is sharper than Alg. 4, which arXiv:2306.08153, section 6, uses for these
    strategies.

    Args:
      matrix: `C`, n x n.
      participation: the participation, which determines b and k.

    Raises:
      ValueError: if the result is not finite and > 0.
    """
    b, k = participation.separation(), participation.participations(matrix.num_rows)
    result = _exact(matrix, b, k, participation.has_fixed_positions)
    if result is None:
        result = upper_bound(matrix, b, k)
    if not (np.isfinite(result.value) and result.value > 0.0):
        raise ValueError(f"sens(C) must be finite and > 0, found {result}: check C.")
    return result


def upper_bound(
    matrix: matrices.LowerTriangular, min_separation: int, max_participations: int
) -> Sensitivity:
    """Returns an upper bound on the sensitivity of `C` under min-separation.

    `C` may be any strategy. The result is the minimum of the bounds that apply to it:

    - the bound of Alg. 4 of arXiv:2306.08153 (Theorem 3);
    - if `C` is Toeplitz, the sensitivity of another Toeplitz matrix whose entries are
      at least as large, and for which Theorem 1 of arXiv:2601.22334 holds;
    - if `C` is a Toeplitz matrix with scaled columns, `scaled_toeplitz_bound`.

    If none of these applies, the result follows from the column norms by the triangle
    inequality, which holds for every matrix. All bounds also hold for a fixed epoch
    order, because its patterns have the same min separation.

    Args:
      matrix: `C`, n x n.
      min_separation: b, the minimum number of steps between two participations.
      max_participations: k, the maximum number of participations.

    Raises:
      ValueError: if `C` is so large that not even its column norms can be computed.
    """
    b, n = min_separation, matrix.num_rows
    k = min(max_participations, -(-n // b))
    bounds: list[Sensitivity] = []

    def add(squared: float, method: str) -> None:
        bounds.append(Sensitivity(float(np.sqrt(squared)), False, f"bound, {method}"))

    column = matrix.toeplitz_column()
    if column is not None:
        # The majorant is at least the absolute value of the column, entry by entry. It
        # is non-increasing from entry b on, so Theorem 1 applies to it (see `_exact`).
        majorant = np.abs(column)
        majorant[b:] = np.maximum.accumulate(majorant[b:][::-1])[::-1]
        larger = matrices.ToeplitzBanded(majorant, n)
        add(_leftmost_columns(larger, b, k) ** 2, "Toeplitz majorant of Theorem 1")
    core = matrix.core.toeplitz_column()
    scale = matrix.column_scale
    if scale is not None and core is not None:
        squared = patterns.scaled_toeplitz_bound(core, scale, b, k)
        add(squared, "Toeplitz with scaled columns")
    width, cost = matrix.bands, matrix.gram_diagonal_cost()
    if width < n and cost is not None and cost < n:
        picks = min(k, -(-2 * width // b))
        if n * width * float(picks + cost) <= _OPERATION_LIMIT:
            add(patterns.banded_gram_bound(matrix, b, k), "Alg. 4 on the bands")
    elif n <= (_DENSE_LIMIT if core is None else _TOEPLITZ_DENSE_LIMIT):
        add(patterns.dense_gram_bound(matrix.to_dense(), b, k), "Alg. 4")
    if not bounds:
        add(
            float(patterns.vec_sens(_column_norms(matrix), b, k)) ** 2,
            "triangle inequality",
        )
    return min(bounds, key=lambda sensitivity_: sensitivity_.value)


def _exact(
    matrix: matrices.LowerTriangular, b: int, k: int, fixed_order: bool
) -> Sensitivity | None:
    """Returns the exact sensitivity by the first theorem that applies, else None."""
    n = matrix.num_rows
    if k == 1 or matrix.bands <= b:
        squared = _column_norms(matrix) ** 2
        if fixed_order:
            padded = np.pad(squared, (0, -n % b)).reshape(-1, b)
            value = padded.T.copy().sum(axis=1).max()
            return Sensitivity(float(np.sqrt(value)), True, "Proposition B.1")
        value = patterns.vec_sens(squared, b, k)
        return Sensitivity(float(np.sqrt(value)), True, "Alg. 5: bands <= b")
    column = matrix.toeplitz_column()
    if column is not None:
        if np.all(column >= 0.0) and np.all(np.diff(column[b:]) <= 0.0):
            # Theorem 1 of arXiv:2601.22334 requires a non-increasing column c, but its
            # proof does not use the order of the first b entries. The proof moves
            # participations to earlier steps. Moving all of them together never reduces
            # the norm if no entry is negative. Moving only those after a gap of more
            # than b steps compares only entries `c[m - 1]` and `c[m]` with m > b.
            value = _leftmost_columns(matrix, b, k)
            return Sensitivity(value, True, "Toeplitz non-increasing from b, Theorem 1")
    if _is_normalized_lambda_cgd(matrix):
        value = _leftmost_columns(matrix, b, k)
        return Sensitivity(value, True, "normalized DP-lambda-CGD, Lemma 8")
    if fixed_order:
        return _exact_fixed_order(matrix, b)
    squared_value = matrix.exact_squared_sensitivity(b, k)
    if squared_value is not None:
        method = f"exact for {matrix.kind.replace('_', ' ')} matrices"
        return Sensitivity(float(np.sqrt(squared_value)), True, method)
    return _exact_path(matrix, b, k)


def _exact_fixed_order(matrix: matrices.LowerTriangular, b: int) -> Sensitivity | None:
    if matrix.gram_diagonal_cost() is None:
        if matrix.num_rows > _DENSE_LIMIT:
            return None
        matrix = matrices.Dense(matrix.to_dense())
    squared, is_exact, method = patterns.fixed_order_maximum(matrix, b)
    return Sensitivity(float(np.sqrt(squared)), is_exact, method)


def _exact_path(matrix: matrices.LowerTriangular, b: int, k: int) -> Sensitivity | None:
    """Returns the exact sensitivity if only consecutive participations interact.

    Two participations interact if their columns of `C` are not orthogonal. Only
    consecutive ones interact if there are at most two, or if bands <= 2b. Otherwise, or
    if the computation would take too long, the function returns None.
    """
    n, width = matrix.num_rows, matrix.bands
    if k > 2 and width > 2 * b:
        return None
    cost = matrix.gram_diagonal_cost()
    if cost is not None and n * (width - b) * float(k + cost) <= _OPERATION_LIMIT:
        squared = patterns.path_maximum(matrix, b, k)
    elif k == 2 and n <= _DENSE_LIMIT:
        squared = patterns.best_pair(matrix.to_dense(), b)
    else:
        return None
    method = "consecutive participations, Prop. E.1"
    return Sensitivity(float(np.sqrt(squared)), True, method)


def _column_norms(matrix: matrices.LowerTriangular) -> np.ndarray:
    if matrix.gram_diagonal_cost() is None and matrix.num_rows > _NORMS_LIMIT:
        raise ValueError(
            f"If the inverse of a strategy is banded but not Toeplitz, num_steps must "
            f"be <= {_NORMS_LIMIT}, but found {matrix.num_rows}. "
            f"Use a strategy whose inverse is Toeplitz, or a banded strategy."
        )
    return matrix.column_norms()


def _leftmost_columns(matrix: matrices.LowerTriangular, b: int, k: int) -> float:
    """Returns the norm of the sum of columns 0, b, ..., (k - 1) b."""
    pattern = np.zeros(matrix.num_rows)
    pattern[::b][:k] = 1.0
    return float(np.linalg.norm(matrix.matmul(pattern)))


def _is_normalized_lambda_cgd(matrix: matrices.LowerTriangular) -> bool:
    """Returns True if Lemma 8 of arXiv:2601.22334 applies to the matrix.

    This is the case for column-normalized DP-lambda-CGD: `matrix = C_lambda D^-1`,
    where the diagonal matrix `D` contains the column norms of `C_lambda`.
    """
    banded = matrix.core.banded_inverse()
    if matrix.column_scale is None or banded is None or banded.bands != 2:
        return False
    column = banded.toeplitz_column()
    if column is None:
        return False
    norms = matrix.column_norms()
    return bool(
        column[0] == 1.0 and -1.0 < column[1] <= 0.0 and np.ptp(norms) < 1e-9 * norms[0]
    )
