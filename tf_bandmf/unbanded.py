"""Lower-triangular matrices that are not banded and whose inverses are not either.

They stand next to the kinds of `tf_bandmf.bands` for the strategies that the banded ones
are compared with:

| class | matrix `M` | one product or solve costs |
|---|---|---|
| `Dense` | any lower-triangular matrix | O(n^2) |
| `BufferedToeplitz` | Toeplitz, a constant plus a few geometric sequences | O(n d) |
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import scipy.linalg
import scipy.signal

from tf_bandmf import bands as bands_lib


@dataclasses.dataclass(frozen=True, eq=False)
class Dense(bands_lib.LowerTriangular):
    """Any lower-triangular matrix, given by all its entries.

    Args:
      entries: shape [n, n]; entries above the diagonal must be zero.

    Raises:
      ValueError: on a non-finite entry, a non-zero entry above the diagonal, or a zero
        on it.
    """

    entries: np.ndarray

    def __post_init__(self) -> None:
        entries = np.array(self.entries, dtype=np.float64)
        if entries.ndim != 2 or entries.shape[0] != entries.shape[1]:
            raise ValueError(f"entries must have shape [n, n], found {entries.shape}.")
        if entries.shape[0] < 1:
            raise ValueError("entries must have at least one row, found none.")
        if not np.all(np.isfinite(entries)):
            raise ValueError("entries must be finite.")
        if np.any(np.triu(entries, 1) != 0.0):
            raise ValueError("entries must be zero above the diagonal.")
        if np.any(np.diagonal(entries) == 0.0):
            raise ValueError("The main diagonal has a zero: the matrix is singular.")
        entries.flags.writeable = False
        object.__setattr__(self, "entries", entries)

    @property
    def num_rows(self) -> int:  # type: ignore[override]
        return self.entries.shape[0]

    @property
    def bands(self) -> int:  # type: ignore[override]
        rows, columns = np.nonzero(self.entries)
        return int((rows - columns).max()) + 1

    def matmul(self, x: np.ndarray) -> np.ndarray:
        return self.entries @ _checked(x, self.num_rows)

    def solve(self, x: np.ndarray) -> np.ndarray:
        x = _checked(x, self.num_rows)
        return scipy.linalg.solve_triangular(self.entries, x, lower=True)

    def column_norms(self) -> np.ndarray:
        return np.linalg.norm(self.entries, axis=0)

    def is_nonnegative(self) -> bool:
        return bool(np.all(self.entries >= 0.0))

    def to_dense(self) -> np.ndarray:
        return np.array(self.entries)

    def to_config(self) -> dict[str, Any]:
        return {"kind": "dense", "entries": self.entries}


@dataclasses.dataclass(frozen=True, eq=False)
class BufferedToeplitz(bands_lib.LowerTriangular):
    """Buffered linear Toeplitz (BLT) matrix: `num_buffers` vectors stream its inverse.

    The first column is `1, c[1], c[2], ...` with
    `c[t] = sum_m output_scales[m] decays[m]^(t - 1)`. As a power series it is
    `prod_m (1 - inverse_decays[m] x) / (1 - decays[m] x)`, so that its inverse is of the
    same form with the two sequences of decays exchanged (Dvijotham et al., 2024,
    arXiv:2404.16706; this parameterization: McMahan, Xu, Zhang, 2024,
    arXiv:2408.08868). Noise streams with `num_buffers` vectors of state `s`, zero at
    first: `y = z + sum_m inverse_output_scales[m] s[m]`, then
    `s[m] = inverse_decays[m] s[m] + z`.

    Args:
      decays: theta, shape [d]; `1 > decays[0] > inverse_decays[0] > decays[1] > ...`.
      inverse_decays: theta-hat, shape [d]; interlaced with `decays` as above and >= 0.
        The interlacing makes all output scales positive, their sum smaller than 1 and
        the first column therefore positive and decreasing.
      num_rows: n.

    Raises:
      ValueError: if shapes differ or the decays are not interlaced in [0, 1).
    """

    decays: np.ndarray
    inverse_decays: np.ndarray
    num_rows: int

    def __post_init__(self) -> None:
        # Validates the number of rows.
        ones = bands_lib.ToeplitzBanded(np.ones(1), self.num_rows)
        object.__setattr__(self, "num_rows", ones.num_rows)
        for name in ("decays", "inverse_decays"):
            values = np.array(getattr(self, name), dtype=np.float64)
            values.flags.writeable = False
            object.__setattr__(self, name, values)
        decays, inverse_decays = self.decays, self.inverse_decays
        if decays.ndim != 1 or decays.size < 1 or decays.shape != inverse_decays.shape:
            raise ValueError(
                f"decays and inverse_decays must be vectors of equal length, found "
                f"shapes {decays.shape} and {inverse_decays.shape}."
            )
        interlaced = np.stack([decays, inverse_decays], axis=1).ravel()
        ordered = np.all(np.diff(interlaced) < 0.0)
        if not (ordered and interlaced[0] < 1.0 and interlaced[-1] >= 0.0):
            raise ValueError(
                f"decays and inverse_decays must interlace in [0, 1): 1 > decays[0] > "
                f"inverse_decays[0] > decays[1] > ... >= 0, found {decays} and "
                f"{inverse_decays}."
            )

    @property
    def num_buffers(self) -> int:
        return self.decays.size

    @property
    def bands(self) -> int:  # type: ignore[override]
        return self.num_rows

    @property
    def output_scales(self) -> np.ndarray:
        """omega, shape [d], all > 0: the first column's geometric weights."""
        return _residues(self.decays, self.inverse_decays)

    @property
    def inverse_output_scales(self) -> np.ndarray:
        """The same of the inverse matrix, shape [d], all < 0."""
        return _residues(self.inverse_decays, self.decays)

    @property
    def numerator(self) -> np.ndarray:
        """Coefficients of `prod_m (1 - inverse_decays[m] x)`, shape [d + 1]."""
        return np.poly(self.inverse_decays)

    @property
    def denominator(self) -> np.ndarray:
        """Coefficients of `prod_m (1 - decays[m] x)`, shape [d + 1]."""
        return np.poly(self.decays)

    def matmul(self, x: np.ndarray) -> np.ndarray:
        x = _checked(x, self.num_rows)
        return _stream(x, self.output_scales, self.decays)

    def solve(self, x: np.ndarray) -> np.ndarray:
        x = _checked(x, self.num_rows)
        return _stream(x, self.inverse_output_scales, self.inverse_decays)

    def toeplitz_column(self) -> np.ndarray:
        powers = np.arange(self.num_rows - 1)
        column = np.ones(self.num_rows)
        column[1:] = 0.0
        for scale, decay in zip(self.output_scales, self.decays):
            column[1:] += scale * decay**powers
        return column

    def column_norms(self) -> np.ndarray:
        return np.sqrt(np.cumsum(self.toeplitz_column() ** 2))[::-1].copy()

    def is_nonnegative(self) -> bool:
        return bool(np.all(self.toeplitz_column() >= 0.0))

    def in_float32(self) -> BufferedToeplitz:
        decays, inverse_decays = (
            values.astype(np.float32) for values in (self.decays, self.inverse_decays)
        )
        # A decay that would be rounded to 1 stays below.
        below_one = np.nextafter(np.float32(1.0), np.float32(0.0))
        return BufferedToeplitz(
            np.minimum(decays, below_one), inverse_decays, self.num_rows
        )

    def to_config(self) -> dict[str, Any]:
        return {
            "kind": "buffered",
            "num_rows": self.num_rows,
            "decays": self.decays,
            "inverse_decays": self.inverse_decays,
        }


def lower_triangular_factor(gram: np.ndarray) -> np.ndarray:
    """The lower-triangular `C` with `C^T C = gram` (amplified-banded-mf, Prop. 4.1).

    Args:
      gram: X, symmetric positive definite, shape [n, n].

    Raises:
      ValueError: if `gram` is not positive definite.
    """
    try:
        reversed_factor = scipy.linalg.cholesky(gram[::-1, ::-1], lower=False)
    except scipy.linalg.LinAlgError as error:
        raise ValueError("The Gram matrix is not positive definite.") from error
    return np.tril(reversed_factor[::-1, ::-1])


def _checked(x: np.ndarray, num_rows: int) -> np.ndarray:
    x = np.asarray(x, dtype=np.float64)
    if x.ndim not in (1, 2) or x.shape[0] != num_rows:
        raise ValueError(
            f"Expected an array of {num_rows} rows, found shape {x.shape}."
        )
    return x


def _residues(decays: np.ndarray, inverse_decays: np.ndarray) -> np.ndarray:
    """Weights of the geometric sequences of `prod (1 - inverse x) / (1 - decay x)`."""
    residues = np.empty_like(decays)
    for m, decay in enumerate(decays):
        others = np.delete(decays, m)
        # Factor by factor: the differences of close decays are then exact.
        ratio = np.prod((decay - np.delete(inverse_decays, m)) / (decay - others))
        residues[m] = (decay - inverse_decays[m]) * ratio
    return residues


def _stream(x: np.ndarray, scales: np.ndarray, decays: np.ndarray) -> np.ndarray:
    """`x[i] + sum_m scales[m] sum_{j < i} decays[m]^(i - 1 - j) x[j]`."""
    result = x.copy()
    for scale, decay in zip(scales, decays):
        result += scipy.signal.lfilter([0.0, scale], [1.0, -decay], x, axis=0)
    return result
