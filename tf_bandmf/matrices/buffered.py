"""Buffered linear Toeplitz (BLT) matrices."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from tf_bandmf.matrices.banded import ToeplitzBanded
from tf_bandmf.matrices.base import (
    LowerTriangular,
    check_num_rows,
    check_operand,
    frozen,
    register,
)
from tf_bandmf.matrices.streaming import GeometricSums


@register
@dataclasses.dataclass(frozen=True, eq=False)
class BufferedToeplitz(LowerTriangular):
    """A buffered linear Toeplitz (BLT) matrix with d decays.

    The first column is `1, c[1], c[2], ...` with
    `c[t] = sum_m output_scales[m] decays[m]^(t - 1)`. As a power series it is
    `prod_m (1 - inverse_decays[m] x) / (1 - decays[m] x)`, so the inverse matrix has the
    same form with the two sequences of decays swapped (arXiv:2404.16706; this
    parameterization: arXiv:2408.08868). The noise is computed step by step with d state
    vectors `s[m]`, initially zero. From the step's standard normals `z`, a step computes
    the noise `y = z + sum_m inverse_output_scales[m] s[m]`, then updates
    `s[m] = inverse_decays[m] s[m] + z`.

    Args:
      decays: shape [d]; the papers' theta.
      inverse_decays: shape [d]; the papers' theta-hat. The two sequences must
        interlace: `1 > decays[0] > inverse_decays[0] > decays[1] > ... >= 0`. Then all
        output scales are positive and sum to less than 1, so the first column is
        positive and decreasing.
      num_rows: n.

    Raises:
      ValueError: if the shapes differ, or the decays do not interlace in [0, 1).
    """

    decays: np.ndarray
    inverse_decays: np.ndarray
    num_rows: int
    kind: ClassVar[str] = "buffered"

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_rows", check_num_rows(self.num_rows))
        for name in ("decays", "inverse_decays"):
            object.__setattr__(self, name, frozen(getattr(self, name)))
        decays, inverse_decays = self.decays, self.inverse_decays
        if decays.ndim != 1 or decays.size < 1 or decays.shape != inverse_decays.shape:
            raise ValueError(
                f"decays and inverse_decays must be vectors of equal length >= 1, found "
                f"shapes {decays.shape} and {inverse_decays.shape}."
            )
        interlaced = np.stack([decays, inverse_decays], axis=1).ravel()
        ordered = np.all(np.diff(interlaced) < 0.0)
        if not (ordered and interlaced[0] < 1.0 and interlaced[-1] >= 0.0):
            raise ValueError(
                f"decays and inverse_decays must satisfy 1 > decays[0] > "
                f"inverse_decays[0] > decays[1] > ... >= 0, but found {decays} "
                f"and {inverse_decays}."
            )

    @property
    def bands(self) -> int:  # type: ignore[override]
        return self.num_rows

    @property
    def output_scales(self) -> np.ndarray:
        """The weights of the geometric sequences in the first column, [d], all > 0."""
        return _residues(self.decays, self.inverse_decays)

    @property
    def inverse_output_scales(self) -> np.ndarray:
        """The weights of the geometric sequences in the inverse's first column.

        They have shape [d] and are all negative.
        """
        return _residues(self.inverse_decays, self.decays)

    def matmul(self, x: np.ndarray) -> np.ndarray:
        x = check_operand(x, self.num_rows)
        return _stream(x, self.output_scales, self.decays)

    def solve(self, x: np.ndarray) -> np.ndarray:
        x = check_operand(x, self.num_rows)
        return _stream(x, self.inverse_output_scales, self.inverse_decays)

    def toeplitz_column(self) -> np.ndarray:
        powers = np.arange(self.num_rows - 1)
        column = np.eye(1, self.num_rows)[0]
        for scale, decay in zip(self.output_scales, self.decays):
            column[1:] += scale * decay**powers
        return column

    def in_float32(self) -> BufferedToeplitz:
        decays, inverse_decays = (
            values.astype(np.float32) for values in (self.decays, self.inverse_decays)
        )
        # A decay that would round to 1 becomes the largest float32 below 1.
        below_one = np.nextafter(np.float32(1.0), np.float32(0.0))
        return BufferedToeplitz(
            np.minimum(decays, below_one), inverse_decays, self.num_rows
        )

    def streaming(self) -> GeometricSums:
        return GeometricSums(
            self.num_rows, self.inverse_output_scales, self.inverse_decays
        )

    def error_factors(
        self, inverse_workload: LowerTriangular, scale: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        # This matrix is P Q^-1 = Q^-1 P with banded Toeplitz P and Q. For a workload A
        # and the strategy C = Q^-1 P D with D = diag(scale), the error matrix is
        # A C^-1 = (P D A^-1)^-1 Q.
        numerator, denominator = (
            ToeplitzBanded(np.poly(roots)[: self.num_rows], self.num_rows)
            for roots in (self.inverse_decays, self.decays)
        )
        regression, _ = numerator.error_factors(inverse_workload, scale)
        return regression, denominator.as_rows()

    @classmethod
    def example(cls, num_rows: int) -> BufferedToeplitz:
        return cls(np.array([0.9, 0.4]), np.array([0.7, 0.1]), num_rows)


def _residues(decays: np.ndarray, inverse_decays: np.ndarray) -> np.ndarray:
    """Returns the weights of the geometric sequences in a BLT matrix's first column.

    The entries of the column are the coefficients of the power series
    `prod_m (1 - inverse_decays[m] x) / (1 - decays[m] x)`. For t >= 1, entry t is
    `sum_m weights[m] decays[m]^(t - 1)`.
    """
    residues = np.empty_like(decays)
    for m, decay in enumerate(decays):
        others = np.delete(decays, m)
        # The product is computed from differences of decays because the difference of
        # two close floating-point numbers is exact.
        ratio = np.prod((decay - np.delete(inverse_decays, m)) / (decay - others))
        residues[m] = (decay - inverse_decays[m]) * ratio
    return residues


def _stream(x: np.ndarray, scales: np.ndarray, decays: np.ndarray) -> np.ndarray:
    """Returns `x[i] + sum_m scales[m] sum_{j < i} decays[m]^(i - 1 - j) x[j]`."""
    # This import is slow, so it is done only where it is needed.
    import scipy.signal

    result = x.copy()
    for scale, decay in zip(scales, decays):
        result += scipy.signal.lfilter([0.0, scale], [1.0, -decay], x, axis=0)
    return result
