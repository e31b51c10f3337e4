"""The ways in which rows of `M^-1 Z` stream: what a matrix tells the noise generator.

`tf_bandmf.noise` has a recurrence for each of these; a kind of matrix chooses one.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Callable

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Streaming(abc.ABC):
    """One way to stream `y = diag(row_scale) M^-1 z`.

    Attributes:
      num_rows: n.
      row_scale: factors of the rows, shape [n], or None for ones.
    """

    num_rows: int
    row_scale: np.ndarray | None = dataclasses.field(default=None, kw_only=True)

    @property
    def memory_vectors(self) -> int:
        """Vectors kept between steps."""
        return 0

    @property
    def regenerations(self) -> int:
        """Earlier vectors of `Z` that a step draws again, at most."""
        return 0

    def scaled(self, factors: np.ndarray) -> Streaming:
        """The same with row `i` times `factors[i]`."""
        scale = factors if self.row_scale is None else factors * self.row_scale
        return dataclasses.replace(self, row_scale=scale)


@dataclasses.dataclass(frozen=True, eq=False)
class ForwardSubstitution(Streaming):
    """`y[i] = (z[i] - sum_{0<j<terms} M[i, i-j] y[i-j]) / M[i, i]`: outputs are kept.

    Attributes:
      terms: bands of `M`.
      rows: gives `M[i, i - j]`, shape [n, terms], or [1, terms] if all rows are equal.
    """

    terms: int
    rows: Callable[[], np.ndarray]

    @property
    def memory_vectors(self) -> int:
        return self.terms - 1


@dataclasses.dataclass(frozen=True, eq=False)
class Regeneration(Streaming):
    """`y[i] = sum_{j<terms} N[i, i-j] z[i-j]` with `N = M^-1`: `z` is drawn again.

    Attributes:
      terms: bands of `N`.
      rows: gives `N[i, i - j]`, shape [n, terms], or [1, terms] if all rows are equal.
    """

    terms: int
    rows: Callable[[], np.ndarray]

    @property
    def regenerations(self) -> int:
        return self.terms - 1


@dataclasses.dataclass(frozen=True, eq=False)
class GeometricSums(Streaming):
    """`y = z + sum_m scales[m] s[m]`, then `s[m] = decays[m] s[m] + z`: `s` is kept.

    Attributes:
      scales: shape [d].
      decays: shape [d].
    """

    scales: np.ndarray
    decays: np.ndarray

    @property
    def memory_vectors(self) -> int:
        return self.decays.size
