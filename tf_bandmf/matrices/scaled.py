"""Matrices with scaled columns."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from tf_bandmf.matrices.banded import RowBanded, scaled_rows
from tf_bandmf.matrices.base import (
    LowerTriangular,
    check_operand,
    frozen,
    register,
)
from tf_bandmf.matrices.streaming import Streaming

# Column norms count as equal if they differ by less than this value.
NORMALIZED = 1e-9


@register
@dataclasses.dataclass(frozen=True, eq=False)
class ColumnScaled(LowerTriangular):
    """A matrix with scaled columns: column `j` of `inner` is multiplied by `scale[j] > 0`.

    The matrix is `M = inner diag(scale)`. If `scale` contains the reciprocals of the
    column norms of `inner`, this is column normalization (arXiv:2601.22334, Proposition
    7). `M^-1 z = diag(1 / scale) inner^-1 z` costs one more multiplication per row than
    `inner^-1 z`.
    """

    inner: LowerTriangular
    scale: np.ndarray
    kind: ClassVar[str] = "column_scaled"

    def __post_init__(self) -> None:
        scale = frozen(self.scale)
        object.__setattr__(self, "scale", scale)
        if self.inner.column_scale is not None:
            raise ValueError("The matrix inner has scaled columns. Pass inner.core.")
        if scale.shape != (self.inner.num_rows,):
            raise ValueError(
                f"scale must have shape [{self.inner.num_rows}], found {scale.shape}."
            )
        if not np.all(np.isfinite(scale) & (scale > 0.0)):
            raise ValueError(f"scale must be finite and > 0, found {scale}.")

    @property
    def num_rows(self) -> int:  # type: ignore[override]
        return self.inner.num_rows

    @property
    def bands(self) -> int:  # type: ignore[override]
        return self.inner.bands

    @property
    def core(self) -> LowerTriangular:
        return self.inner

    @property
    def column_scale(self) -> np.ndarray:
        return self.scale

    @property
    def stored_bands(self) -> int | None:
        return self.inner.stored_bands

    def as_rows(self) -> np.ndarray:
        return scaled_rows(self.inner.as_rows(), self.scale)

    def gram_diagonal_cost(self) -> int | None:
        return self.inner.gram_diagonal_cost()

    def gram_diagonal(self, offset: int) -> np.ndarray:
        inner = self.inner.gram_diagonal(offset)
        return inner * self.scale[: self.num_rows - offset] * self.scale[offset:]

    def streaming(self) -> Streaming:
        return self.inner.streaming().scaled(1.0 / self.scale)

    def error_factors(
        self, inverse_workload: LowerTriangular, scale: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray] | None:
        total = self.scale if scale is None else self.scale * scale
        return self.inner.error_factors(inverse_workload, total)

    def in_float32(self) -> LowerTriangular:
        """Returns the matrix with its inner matrix rounded to float32.

        If all columns had the same norm, they are normalized again after rounding.
        """
        core = self.inner.in_float32()
        if np.ptp(self.column_norms()) < NORMALIZED:
            return core.normalize_columns()
        return ColumnScaled(core, self.scale)

    def _broadcast(self, x: np.ndarray) -> np.ndarray:
        return self.scale if x.ndim == 1 else self.scale[:, None]

    def matmul(self, x: np.ndarray) -> np.ndarray:
        x = check_operand(x, self.num_rows)
        return self.inner.matmul(x * self._broadcast(x))

    def solve(self, x: np.ndarray) -> np.ndarray:
        x = check_operand(x, self.num_rows)
        return self.inner.solve(x) / self._broadcast(x)

    def column_norms(self) -> np.ndarray:
        return self.inner.column_norms() * self.scale

    def is_nonnegative(self) -> bool:
        return self.inner.is_nonnegative()

    @classmethod
    def example(cls, num_rows: int) -> ColumnScaled:
        return cls(RowBanded.example(num_rows), np.linspace(0.5, 1.0, num_rows))
