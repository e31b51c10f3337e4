"""Inverses of banded matrices."""

from __future__ import annotations

import dataclasses
import functools
from typing import ClassVar

import numpy as np

from tf_bandmf.matrices.banded import ToeplitzBanded
from tf_bandmf.matrices.base import LowerTriangular, frozen, register
from tf_bandmf.matrices.streaming import Regeneration


@register
@dataclasses.dataclass(frozen=True, eq=False)
class Inverse(LowerTriangular):
    """The inverse of the banded matrix `inner`; in general, it is not banded."""

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

    def toeplitz_column(self) -> np.ndarray | None:
        return self._toeplitz_column

    @functools.cached_property
    def _toeplitz_column(self) -> np.ndarray | None:
        if self.inner.toeplitz_column() is None:
            return None
        # The array is read-only because all callers share it.
        return frozen(self.inner.solve(np.eye(1, self.num_rows)[0]))

    def in_float32(self) -> Inverse:
        return Inverse(self.inner.in_float32())

    def streaming(self) -> Regeneration:
        return Regeneration(self.num_rows, self.inner.bands, self.inner.distinct_rows)

    def error_factors(
        self, inverse_workload: LowerTriangular, scale: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        # For a workload A and the strategy C = inner^-1 diag(scale), the error matrix is
        # A C^-1 = R^-1 N with the banded R = A^-1 and N = diag(1 / scale) inner.
        average = np.array(self.inner.as_rows())
        if scale is not None:
            average /= scale[:, None]
        return inverse_workload.as_rows(), average

    @classmethod
    def example(cls, num_rows: int) -> Inverse:
        return cls(ToeplitzBanded(np.array([1.0, -0.5, -0.1]), num_rows))
