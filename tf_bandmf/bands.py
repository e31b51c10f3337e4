"""Algebra of lower-triangular matrices with banded structure, in float64.

Every matrix of this library is lower triangular and is banded itself, or is the
inverse of a banded matrix, or is one of these with its columns scaled. The classes
here never materialize an `n x n` array unless `to_dense` is called, so they serve
`n = 10**6` as well as `n = 4`.

| class | matrix `M` | one product or solve costs |
|---|---|---|
| `ToeplitzBanded` | constant diagonals, `w` of them | O(n w) |
| `RowBanded` | any entries on `w` diagonals | O(n w) |
| `Inverse` | the inverse of one of the above | as its inner matrix |
| `ColumnScaled` | one of the above times a positive diagonal matrix | as its inner matrix |

Indices are zero-based: entry `[i, j]` couples step `i` with the earlier step `j`.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.linalg
import scipy.signal

# Above this number of diagonals a convolution by FFT is faster than a direct one.
_FFT_BANDS = 512


class LowerTriangular(abc.ABC):
    """An invertible `n x n` lower-triangular matrix, float64, immutable.

    Attributes:
      num_rows: n.
      bands: number of diagonals, the main one included, that may be non-zero.
    """

    num_rows: int
    bands: int

    @abc.abstractmethod
    def matmul(self, x: np.ndarray) -> np.ndarray:
        """Returns `M @ x` for `x` of shape [n] or [n, m]."""

    @abc.abstractmethod
    def solve(self, x: np.ndarray) -> np.ndarray:
        """Returns `M^-1 @ x` for `x` of shape [n] or [n, m]."""

    @abc.abstractmethod
    def column_norms(self) -> np.ndarray:
        """Returns the l2 norms of the columns of `M`, shape [n]."""

    @abc.abstractmethod
    def is_nonnegative(self) -> bool:
        """Whether every entry of `M` is >= 0, checked on the actual entries."""

    def toeplitz_column(self) -> np.ndarray | None:
        """The first column, shape [n], if `M` is Toeplitz; otherwise None."""
        return None

    def normalize_columns(self) -> ColumnScaled:
        """Returns `M D^-1` whose columns all have l2 norm 1."""
        return ColumnScaled(self, 1.0 / self.column_norms())

    def in_float32(self) -> LowerTriangular:
        """`M` with its parameters rounded to float32, which is how noise is computed.

        Near a singular inverse the rounding moves `M` by more than one would think: what
        is analysed must be what is used.
        """
        return self

    def to_dense(self) -> np.ndarray:
        """Materializes `M`, shape [n, n]. For small `n` and for tests."""
        return self.matmul(np.eye(self.num_rows))

    @abc.abstractmethod
    def to_config(self) -> dict[str, Any]:
        """A dictionary of plain values and arrays from which `from_config` rebuilds."""


def _check_num_rows(num_rows: int) -> int:
    if isinstance(num_rows, bool) or not isinstance(num_rows, (int, np.integer)):
        raise TypeError(f"num_rows must be an int, found {num_rows!r}.")
    if num_rows < 1:
        raise ValueError(f"num_rows must be >= 1, found {num_rows}.")
    return int(num_rows)


def _frozen(array: Any) -> np.ndarray:
    array = np.array(array, dtype=np.float64)
    array.flags.writeable = False
    return array


def _check_operand(x: np.ndarray, num_rows: int) -> np.ndarray:
    x = np.asarray(x, dtype=np.float64)
    if x.ndim not in (1, 2) or x.shape[0] != num_rows:
        raise ValueError(
            f"Expected an array of {num_rows} rows, found shape {x.shape}."
        )
    return x


@dataclasses.dataclass(frozen=True, eq=False)
class ToeplitzBanded(LowerTriangular):
    """`M[i, j] = coefficients[i - j]` for `0 <= i - j < bands`, else 0.

    Args:
      coefficients: the diagonals, main one first; shape [w], `1 <= w <= num_rows`.
        Coefficients past `num_rows` do not exist in the matrix and are refused, so
        that the horizon is never inferred from their number.
      num_rows: n.

    Raises:
      ValueError: if a coefficient is not finite, the first one is zero (the matrix
        would be singular), or there are more coefficients than rows.
    """

    coefficients: np.ndarray
    num_rows: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_rows", _check_num_rows(self.num_rows))
        c = _frozen(self.coefficients)
        object.__setattr__(self, "coefficients", c)
        if c.ndim != 1 or c.size < 1:
            raise ValueError(f"coefficients must be a vector, found shape {c.shape}.")
        if c.size > self.num_rows:
            raise ValueError(
                f"A matrix of {self.num_rows} rows has at most {self.num_rows} bands, "
                f"found {c.size} coefficients."
            )
        if not np.all(np.isfinite(c)):
            raise ValueError(f"coefficients must be finite, found {c}.")
        if c[0] == 0.0:
            raise ValueError("The main diagonal is zero: the matrix is singular.")

    @property
    def bands(self) -> int:  # type: ignore[override]
        return self.coefficients.size

    def matmul(self, x: np.ndarray) -> np.ndarray:
        x = _check_operand(x, self.num_rows)
        if self.bands > _FFT_BANDS:
            column = self.coefficients if x.ndim == 1 else self.coefficients[:, None]
            return scipy.signal.fftconvolve(x, column, axes=0)[: self.num_rows]
        return scipy.signal.lfilter(self.coefficients, [1.0], x, axis=0)

    def solve(self, x: np.ndarray) -> np.ndarray:
        x = _check_operand(x, self.num_rows)
        return scipy.signal.lfilter([1.0], self.coefficients, x, axis=0)

    def column_norms(self) -> np.ndarray:
        # Column j holds the first n - j coefficients.
        cumulative = np.cumsum(self.coefficients**2)
        length = np.minimum(self.num_rows - np.arange(self.num_rows), self.bands)
        return np.sqrt(cumulative[length - 1])

    def is_nonnegative(self) -> bool:
        return bool(np.all(self.coefficients >= 0.0))

    def toeplitz_column(self) -> np.ndarray:
        return np.pad(self.coefficients, (0, self.num_rows - self.bands))

    def in_float32(self) -> ToeplitzBanded:
        return ToeplitzBanded(self.coefficients.astype(np.float32), self.num_rows)

    def to_config(self) -> dict[str, Any]:
        return {
            "kind": "toeplitz",
            "num_rows": self.num_rows,
            "coefficients": self.coefficients,
        }


@dataclasses.dataclass(frozen=True, eq=False)
class RowBanded(LowerTriangular):
    """`M[i, i - j] = rows[i, j]` for `0 <= j < bands`.

    Args:
      rows: shape [n, w]; entries that would fall left of the matrix (`j > i`) must be
        zero.

    Raises:
      ValueError: on a non-finite entry, a zero on the main diagonal, or a non-zero
        entry outside of the matrix.
    """

    rows: np.ndarray

    def __post_init__(self) -> None:
        rows = _frozen(self.rows)
        object.__setattr__(self, "rows", rows)
        if rows.ndim != 2 or not 1 <= rows.shape[1] <= max(rows.shape[0], 1):
            raise ValueError(
                f"rows must have shape [n, bands] with 1 <= bands <= n, found "
                f"{rows.shape}."
            )
        if not np.all(np.isfinite(rows)):
            raise ValueError("rows must be finite.")
        if np.any(rows[:, 0] == 0.0):
            raise ValueError("The main diagonal has a zero: the matrix is singular.")
        for j in range(1, rows.shape[1]):
            if np.any(rows[:j, j] != 0.0):
                raise ValueError(f"rows[:{j}, {j}] lie outside of the matrix: not 0.")

    @property
    def num_rows(self) -> int:  # type: ignore[override]
        return self.rows.shape[0]

    @property
    def bands(self) -> int:  # type: ignore[override]
        return self.rows.shape[1]

    def matmul(self, x: np.ndarray) -> np.ndarray:
        x = _check_operand(x, self.num_rows)
        weights = self.rows if x.ndim == 1 else self.rows[:, :, None]
        result = weights[:, 0] * x
        for j in range(1, self.bands):
            result[j:] += weights[j:, j] * x[:-j]
        return result

    def solve(self, x: np.ndarray) -> np.ndarray:
        x = _check_operand(x, self.num_rows)
        # BLAS keeps the diagonals as rows, each shifted so that columns line up.
        storage = np.zeros((self.bands, self.num_rows))
        for j in range(self.bands):
            storage[j, : self.num_rows - j] = self.rows[j:, j]
        columns = x[:, None] if x.ndim == 1 else x
        solved = np.empty_like(columns)
        for m in range(columns.shape[1]):
            solved[:, m] = scipy.linalg.blas.dtbsv(
                self.bands - 1, storage, columns[:, m], lower=1
            )
        return solved.reshape(x.shape)

    def column_norms(self) -> np.ndarray:
        squared = self.rows[:, 0] ** 2
        for j in range(1, self.bands):
            squared[:-j] += self.rows[j:, j] ** 2
        return np.sqrt(squared)

    def is_nonnegative(self) -> bool:
        return bool(np.all(self.rows >= 0.0))

    def in_float32(self) -> RowBanded:
        return RowBanded(self.rows.astype(np.float32))

    def to_config(self) -> dict[str, Any]:
        return {"kind": "rows", "rows": self.rows}


@dataclasses.dataclass(frozen=True, eq=False)
class Inverse(LowerTriangular):
    """`M = inner^-1`, for a banded `inner`; `M` itself has up to `n` bands."""

    inner: LowerTriangular

    @property
    def num_rows(self) -> int:  # type: ignore[override]
        return self.inner.num_rows

    @property
    def bands(self) -> int:  # type: ignore[override]
        return 1 if self.inner.bands == 1 else self.num_rows

    def matmul(self, x: np.ndarray) -> np.ndarray:
        return self.inner.solve(x)

    def solve(self, x: np.ndarray) -> np.ndarray:
        return self.inner.matmul(x)

    def column_norms(self) -> np.ndarray:
        column = self.toeplitz_column()
        if column is None:
            return np.linalg.norm(self.to_dense(), axis=0)
        return np.sqrt(np.cumsum(column**2))[::-1].copy()

    def is_nonnegative(self) -> bool:
        column = self.toeplitz_column()
        return bool(np.all((self.to_dense() if column is None else column) >= 0.0))

    def toeplitz_column(self) -> np.ndarray | None:
        if self.inner.toeplitz_column() is None:
            return None
        return self.inner.solve(np.eye(1, self.num_rows)[0])

    def in_float32(self) -> Inverse:
        return Inverse(self.inner.in_float32())

    def to_config(self) -> dict[str, Any]:
        return {"kind": "inverse", "inner": self.inner.to_config()}


@dataclasses.dataclass(frozen=True, eq=False)
class ColumnScaled(LowerTriangular):
    """`M = inner diag(scale)`: column `j` of `inner` times `scale[j] > 0`.

    With `scale = 1 / column norms` this is column normalization (dp-lambda-cgd,
    Proposition 7): `M^-1 z = diag(1 / scale) inner^-1 z` costs one factor a row.
    """

    inner: LowerTriangular
    scale: np.ndarray

    def __post_init__(self) -> None:
        scale = _frozen(self.scale)
        object.__setattr__(self, "scale", scale)
        if isinstance(self.inner, ColumnScaled):
            raise ValueError("The columns are scaled already: scale them once.")
        if scale.shape != (self.inner.num_rows,):
            raise ValueError(
                f"scale must have shape [{self.inner.num_rows}], found {scale.shape}."
            )
        if not np.all(np.isfinite(scale) & (scale > 0.0)):
            raise ValueError("scale must be finite and > 0.")

    @property
    def num_rows(self) -> int:  # type: ignore[override]
        return self.inner.num_rows

    @property
    def bands(self) -> int:  # type: ignore[override]
        return self.inner.bands

    def _broadcast(self, x: np.ndarray) -> np.ndarray:
        return self.scale if x.ndim == 1 else self.scale[:, None]

    def matmul(self, x: np.ndarray) -> np.ndarray:
        x = _check_operand(x, self.num_rows)
        return self.inner.matmul(x * self._broadcast(x))

    def solve(self, x: np.ndarray) -> np.ndarray:
        x = _check_operand(x, self.num_rows)
        return self.inner.solve(x) / self._broadcast(x)

    def column_norms(self) -> np.ndarray:
        return self.inner.column_norms() * self.scale

    def is_nonnegative(self) -> bool:
        return self.inner.is_nonnegative()

    def to_config(self) -> dict[str, Any]:
        return {
            "kind": "column_scaled",
            "inner": self.inner.to_config(),
            "scale": self.scale,
        }


def from_config(config: Mapping[str, Any]) -> LowerTriangular:
    """Rebuilds the matrix of a `to_config` dictionary.

    Raises:
      ValueError: if the kind of matrix is unknown or its content is invalid.
    """
    kind = config.get("kind")
    if kind == "toeplitz":
        return ToeplitzBanded(config["coefficients"], config["num_rows"])
    if kind == "rows":
        return RowBanded(config["rows"])
    if kind == "inverse":
        return Inverse(from_config(config["inner"]))
    if kind == "column_scaled":
        return ColumnScaled(from_config(config["inner"]), config["scale"])
    # Kinds of files that build on this one.
    if kind in ("dense", "buffered"):
        from tf_bandmf import unbanded

        if kind == "dense":
            return unbanded.Dense(config["entries"])
        return unbanded.BufferedToeplitz(
            config["decays"], config["inverse_decays"], config["num_rows"]
        )
    if kind == "dyadic_tree":
        from tf_bandmf import dyadic_tree

        return dyadic_tree.DyadicTree(config["num_rows"])
    raise ValueError(
        f"Unknown kind of matrix {kind!r}: was it saved by a newer version?"
    )


def as_rows(matrix: LowerTriangular) -> np.ndarray:
    """The diagonals of a banded matrix row by row, shape [n, bands].

    Raises:
      TypeError: for an `Inverse`, whose rows are not banded.
    """
    if isinstance(matrix, RowBanded):
        return matrix.rows
    if isinstance(matrix, ToeplitzBanded):
        rows = np.tile(matrix.coefficients, (matrix.num_rows, 1))
        for j in range(1, matrix.bands):
            rows[:j, j] = 0.0
        return rows
    if isinstance(matrix, ColumnScaled):
        rows = np.array(as_rows(matrix.inner))
        rows[:, 0] *= matrix.scale
        for j in range(1, matrix.bands):
            rows[j:, j] *= matrix.scale[:-j]
        return rows
    raise TypeError(f"{type(matrix).__name__} has no banded rows.")


def multiply(left: LowerTriangular, right: LowerTriangular) -> RowBanded:
    """The product of two banded matrices of the same size, again banded."""
    a, b = as_rows(left), as_rows(right)
    if a.shape[0] != b.shape[0]:
        raise ValueError(f"Sizes differ: {a.shape[0]} and {b.shape[0]} rows.")
    n = a.shape[0]
    product = np.zeros((n, min(a.shape[1] + b.shape[1] - 1, n)))
    for i in range(a.shape[1]):
        for j in range(b.shape[1]):
            if i + j < n:
                product[i:, i + j] += a[i:, i] * b[: n - i, j]
    return RowBanded(product)
