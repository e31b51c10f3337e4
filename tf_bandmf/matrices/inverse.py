"""Inverses of banded matrices."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from tf_bandmf.matrices.banded import ToeplitzBanded
from tf_bandmf.matrices.base import LowerTriangular, from_config, frozen, register
from tf_bandmf.matrices.streaming import Regeneration


@register
@dataclasses.dataclass(frozen=True, eq=False)
class Inverse(LowerTriangular):
    """`M = inner^-1`, for a banded `inner`; `M` itself has up to `n` bands."""

    inner: LowerTriangular
    kind: ClassVar[str] = "inverse"

    @property
    def num_rows(self) -> int:  # type: ignore[override]
        return self.inner.num_rows

    @property
    def bands(self) -> int:  # type: ignore[override]
        return 1 if self.inner.bands == 1 else self.num_rows

    @property
    def stored_bands(self) -> int:
        return self.inner.bands

    def banded_inverse(self) -> LowerTriangular:
        return self.inner

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
        return self._toeplitz_column

    @functools.cached_property
    def _toeplitz_column(self) -> np.ndarray | None:
        if self.inner.toeplitz_column() is None:
            return None
        # Read-only, for every caller gets the same.
        return frozen(self.inner.solve(np.eye(1, self.num_rows)[0]))

    def in_float32(self) -> Inverse:
        return Inverse(self.inner.in_float32())

    def streaming(self) -> Regeneration:
        return Regeneration(self.num_rows, self.inner.bands, self._noising_rows)

    def _noising_rows(self) -> np.ndarray:
        column = self.inner.toeplitz_column()
        # One row serves all steps of a Toeplitz matrix.
        return (
            self.inner.as_rows() if column is None else column[None, : self.inner.bands]
        )

    def error_factors(
        self, inverse_workload: LowerTriangular, scale: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        # A C^-1 = (A^-1)^-1 (D N): the noising matrix is banded.
        average = np.array(self.inner.as_rows())
        if scale is not None:
            average /= scale[:, None]
        return inverse_workload.as_rows(), average

    def to_config(self) -> dict[str, Any]:
        return {"kind": self.kind, "inner": self.inner.to_config()}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Inverse:
        return cls(from_config(config["inner"]))

    @classmethod
    def example(cls, num_rows: int) -> Inverse:
        return cls(ToeplitzBanded(np.array([1.0, -0.5, -0.1]), num_rows))
