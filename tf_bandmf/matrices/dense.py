"""Lower-triangular matrices without structure, stored with all their entries."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from tf_bandmf.matrices.base import LowerTriangular, check_operand, frozen, register
from tf_bandmf.matrices.streaming import Regeneration


@register
@dataclasses.dataclass(frozen=True, eq=False)
class Dense(LowerTriangular):
    """A lower-triangular matrix of any structure, stored with all its entries.

    Args:
      entries: shape [n, n]; entries above the diagonal must be zero.

    Raises:
      ValueError: if an entry is not finite, an entry above the main diagonal is not
        zero, or an entry of the main diagonal is zero.
    """

    entries: np.ndarray
    kind: ClassVar[str] = "dense"

    def __post_init__(self) -> None:
        entries = frozen(self.entries)
        object.__setattr__(self, "entries", entries)
        if entries.ndim != 2 or entries.shape[0] != entries.shape[1]:
            raise ValueError(f"entries must have shape [n, n], found {entries.shape}.")
        if entries.shape[0] < 1:
            raise ValueError("entries must have at least one row, found none.")
        if not np.all(np.isfinite(entries)):
            raise ValueError("entries must contain only finite numbers.")
        if np.any(np.triu(entries, 1) != 0.0):
            raise ValueError("entries must be zero above the diagonal.")
        if np.any(np.diagonal(entries) == 0.0):
            raise ValueError("The diagonal must contain no 0: the matrix is singular.")

    @property
    def num_rows(self) -> int:  # type: ignore[override]
        return self.entries.shape[0]

    @property
    def bands(self) -> int:  # type: ignore[override]
        rows, columns = np.nonzero(self.entries)
        return int((rows - columns).max()) + 1

    def matmul(self, x: np.ndarray) -> np.ndarray:
        return self.entries @ check_operand(x, self.num_rows)

    def solve(self, x: np.ndarray) -> np.ndarray:
        # This import is slow, so it is done only where it is needed.
        import scipy.linalg

        x = check_operand(x, self.num_rows)
        return scipy.linalg.solve_triangular(self.entries, x, lower=True)

    def to_dense(self) -> np.ndarray:
        return np.array(self.entries)

    def gram_diagonal_cost(self) -> int:
        return self.num_rows

    def gram_diagonal(self, offset: int) -> np.ndarray:
        left = self.entries[:, : self.num_rows - offset]
        return np.einsum("ij,ij->j", left, self.entries[:, offset:])

    def streaming(self) -> Regeneration:
        return Regeneration(self.num_rows, self.num_rows, self._noising_rows)

    def _noising_rows(self) -> np.ndarray:
        inverse = self.solve(np.eye(self.num_rows))
        steps = np.arange(self.num_rows)
        columns = steps[:, None] - steps[None, :]
        rows = np.take_along_axis(inverse, np.maximum(columns, 0), axis=1)
        return np.where(columns >= 0, rows, 0.0)

    @classmethod
    def example(cls, num_rows: int) -> Dense:
        step = np.arange(num_rows)
        distance = step[:, None] - step[None, :]
        return cls(np.where(distance >= 0, 1.0 / (1.0 + np.abs(distance)), 0.0))


def lower_triangular_factor(gram: np.ndarray) -> np.ndarray:
    """Returns the lower-triangular `C` with `C^T C = gram` (arXiv:2306.08153, Prop. 4.1).

    Args:
      gram: symmetric positive definite matrix, shape [n, n].

    Raises:
      ValueError: if `gram` is not positive definite.
    """
    # This import is slow, so it is done only where it is needed.
    import scipy.linalg

    try:
        reversed_factor = scipy.linalg.cholesky(gram[::-1, ::-1], lower=False)
    except scipy.linalg.LinAlgError as error:
        raise ValueError(f"gram must be positive definite: {error}") from error
    return np.tril(reversed_factor[::-1, ::-1])
