"""Banded lower-triangular matrices, with constant diagonals or arbitrary entries."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from tf_bandmf.matrices import filters
from tf_bandmf.matrices.base import (
    LowerTriangular,
    check_num_rows,
    check_operand,
    frozen,
    register,
)
from tf_bandmf.matrices.streaming import ForwardSubstitution


class Banded(LowerTriangular):
    """The base class of banded matrices, which are stored as their diagonals."""

    @property
    def stored_bands(self) -> int:
        return self.bands

    def streaming(self) -> ForwardSubstitution:
        return ForwardSubstitution(self.num_rows, self.bands, self.distinct_rows)

    def error_factors(
        self, inverse_workload: LowerTriangular, scale: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        # For a workload A and the strategy C = M diag(scale), where M is this matrix, the
        # error matrix is A C^-1 = R^-1 N with the banded R = C A^-1 and N = I.
        rows = self.as_rows() if scale is None else scaled_rows(self.as_rows(), scale)
        product = multiply(RowBanded(rows), inverse_workload)
        return product.rows, np.ones((self.num_rows, 1))


@register
@dataclasses.dataclass(frozen=True, eq=False)
class ToeplitzBanded(Banded):
    """A banded Toeplitz matrix: `M[i, j] = coefficients[i - j]` for `0 <= i - j < bands`.

    Args:
      coefficients: one value per diagonal, the main diagonal first; shape [w],
        `1 <= w <= num_rows`.
      num_rows: n.

    Raises:
      ValueError: if a coefficient is not finite, the first coefficient is zero (the
        matrix would be singular), or there are more coefficients than rows.
    """

    coefficients: np.ndarray
    num_rows: int
    kind: ClassVar[str] = "toeplitz"

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_rows", check_num_rows(self.num_rows))
        c = frozen(self.coefficients)
        object.__setattr__(self, "coefficients", c)
        if c.ndim != 1 or c.size < 1:
            raise ValueError(f"coefficients must be 1-D and nonempty, found {c.shape}.")
        if c.size > self.num_rows:
            raise ValueError(
                f"coefficients must have at most num_rows = {self.num_rows} entries, "
                f"found {c.size}."
            )
        if not np.all(np.isfinite(c)):
            raise ValueError(f"coefficients must be finite, found {c}.")
        if c[0] == 0.0:
            raise ValueError("coefficients[0] must not be 0: the matrix is singular.")

    @property
    def bands(self) -> int:  # type: ignore[override]
        return self.coefficients.size

    def as_rows(self) -> np.ndarray:
        rows = np.tile(self.coefficients, (self.num_rows, 1))
        for j in range(1, self.bands):
            rows[:j, j] = 0.0
        return rows

    def matmul(self, x: np.ndarray) -> np.ndarray:
        x = check_operand(x, self.num_rows)
        return filters.convolve(self.coefficients, x)

    def solve(self, x: np.ndarray) -> np.ndarray:
        x = check_operand(x, self.num_rows)
        return filters.deconvolve(self.coefficients, x)

    def toeplitz_column(self) -> np.ndarray:
        return np.pad(self.coefficients, (0, self.num_rows - self.bands))

    def in_float32(self) -> ToeplitzBanded:
        return ToeplitzBanded(self.coefficients.astype(np.float32), self.num_rows)

    @classmethod
    def example(cls, num_rows: int) -> ToeplitzBanded:
        return cls(np.array([1.0, 0.5, 0.3]), num_rows)


@register
@dataclasses.dataclass(frozen=True, eq=False)
class RowBanded(Banded):
    """A banded matrix with any entries: `M[i, i - j] = rows[i, j]`, `0 <= j < bands`.

    Args:
      rows: shape [n, bands]. `rows[i, j]` with `j > i` would be left of the matrix, and
        must be zero.

    Raises:
      ValueError: if an entry is not finite, an entry of the main diagonal is zero, or
        an entry outside the matrix is not zero.
    """

    rows: np.ndarray
    kind: ClassVar[str] = "rows"

    def __post_init__(self) -> None:
        rows = frozen(self.rows)
        object.__setattr__(self, "rows", rows)
        if rows.ndim != 2 or not 1 <= rows.shape[1] <= max(rows.shape[0], 1):
            raise ValueError(
                f"rows must have shape [n, bands] with 1 <= bands <= n, found "
                f"{rows.shape}."
            )
        if not np.all(np.isfinite(rows)):
            raise ValueError("rows must contain only finite numbers.")
        if np.any(rows[:, 0] == 0.0):
            raise ValueError("rows[:, 0] must not contain 0: the matrix is singular.")
        for j in range(1, rows.shape[1]):
            if np.any(rows[:j, j] != 0.0):
                raise ValueError(f"rows[:{j}, {j}] is outside the matrix: set it to 0.")

    @property
    def num_rows(self) -> int:  # type: ignore[override]
        return self.rows.shape[0]

    @property
    def bands(self) -> int:  # type: ignore[override]
        return self.rows.shape[1]

    def as_rows(self) -> np.ndarray:
        return self.rows

    def gram_diagonal_cost(self) -> int:
        return self.bands

    def gram_diagonal(self, offset: int) -> np.ndarray:
        n, width = self.rows.shape
        diagonal = np.zeros(n - offset)
        for t in range(min(width - offset, n - offset)):
            products = self.rows[offset + t :, offset + t] * self.rows[offset + t :, t]
            diagonal[: n - offset - t] += products
        return diagonal

    def matmul(self, x: np.ndarray) -> np.ndarray:
        x = check_operand(x, self.num_rows)
        weights = self.rows if x.ndim == 1 else self.rows[:, :, None]
        result = weights[:, 0] * x
        for j in range(1, self.bands):
            result[j:] += weights[j:, j] * x[:-j]
        return result

    def solve(self, x: np.ndarray) -> np.ndarray:
        x = check_operand(x, self.num_rows)
        # BLAS expects an array with one row per diagonal, in which each column contains
        # a column of the matrix.
        return filters.solve_banded(columns_from_rows(self.rows), x)

    def column_norms(self) -> np.ndarray:
        return np.sqrt((columns_from_rows(self.rows) ** 2).sum(axis=0))

    def is_nonnegative(self) -> bool:
        return bool(np.all(self.rows >= 0.0))

    def in_float32(self) -> RowBanded:
        return RowBanded(self.rows.astype(np.float32))

    @classmethod
    def example(cls, num_rows: int) -> RowBanded:
        step = np.arange(num_rows)
        rows = np.stack([1.0 + 0.1 * (step % 3), 0.5 - 0.2 * (step % 2)], axis=1)
        rows[0, 1] = 0.0
        return cls(rows)


def multiply(left: LowerTriangular, right: LowerTriangular) -> RowBanded:
    """Returns the product of two banded matrices of the same size; it is banded, too.

    Raises:
      ValueError: if the sizes differ.
    """
    a, b = left.as_rows(), right.as_rows()
    if a.shape[0] != b.shape[0]:
        raise ValueError(f"Matrix sizes must be equal: {a.shape[0]} != {b.shape[0]}.")
    n = a.shape[0]
    product = np.zeros((n, min(a.shape[1] + b.shape[1] - 1, n)))
    for i in range(a.shape[1]):
        for j in range(b.shape[1]):
            if i + j < n:
                product[i:, i + j] += a[i:, i] * b[: n - i, j]
    return RowBanded(product)


def columns_from_rows(rows: np.ndarray) -> np.ndarray:
    """Returns the columns of a banded matrix M, computed from its rows.

    Args:
      rows: `rows[i, j]` is `M[i, i - j]`, as returned by `as_rows`; shape [n, bands].

    Returns:
      Shape [bands, n]. Entry `[j, i]` is `M[i + j, i]`, or 0 outside the matrix.
    """
    n, bands = rows.shape
    columns = np.zeros((bands, n))
    for j in range(bands):
        columns[j, : n - j] = rows[j:, j]
    return columns


def scaled_rows(rows: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Scales the columns of a banded matrix, which is passed as in `as_rows`."""
    rows = np.array(rows)
    rows[:, 0] *= scale
    for j in range(1, rows.shape[1]):
        rows[j:, j] *= scale[:-j]
    return rows
