"""Descriptions of how the noise generator computes the rows of `M^-1 Z` step by step.

`M` is a strategy matrix, and `Z` contains standard normals. The method
`LowerTriangular.streaming` of each matrix returns one of these descriptions.
`tf_bandmf.noise` implements a recurrence for each class of descriptions.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Callable

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Streaming(abc.ABC):
    """Describes a method to compute the rows of `diag(row_scale) M^-1 Z` step by step.

    This is the base class of all descriptions.

    Attributes:
      num_rows: n, the number of rows of the strategy matrix `M`.
      row_scale: factors by which the rows of `M^-1 Z` are multiplied, shape [n]; None
        for ones.
    """

    num_rows: int
    row_scale: np.ndarray | None = dataclasses.field(default=None, kw_only=True)

    @property
    def memory_vectors(self) -> int:
        """The number of model-sized vectors that are stored between steps."""
        return 0

    @property
    def regenerations(self) -> int:
        """The maximum number of earlier steps whose normals a step generates again."""
        return 0

    def scaled(self, factors: np.ndarray) -> Streaming:
        """Returns a copy in which row `i` is also multiplied by `factors[i]`."""
        scale = factors if self.row_scale is None else factors * self.row_scale
        return dataclasses.replace(self, row_scale=scale)


@dataclasses.dataclass(frozen=True, eq=False)
class ForwardSubstitution(Streaming):
    """Forward substitution, which computes the noise from stored earlier noise.

    From row `z[i]` of `Z`, step `i` computes row `y[i]` of `M^-1 Z`,
    `y[i] = (z[i] - sum_{0<j<terms} M[i, i-j] y[i-j]) / M[i, i]`.

    Attributes:
      terms: number of bands of `M`.
      rows: function that returns `M[i, i - j]`, shape [n, terms], or [1, terms] if all
        rows are equal.
    """

    terms: int
    rows: Callable[[], np.ndarray]

    @property
    def memory_vectors(self) -> int:
        return self.terms - 1


@dataclasses.dataclass(frozen=True, eq=False)
class Regeneration(Streaming):
    """Regeneration, which generates earlier normals again to compute the noise.

    With the banded matrix `N = M^-1` and the rows `z[i]` of `Z`, step `i` computes
    `sum_{j<terms} N[i, i-j] z[i-j]`, row `i` of `M^-1 Z`.

    Attributes:
      terms: number of bands of `N`.
      rows: function that returns `N[i, i - j]`, shape [n, terms], or [1, terms] if all
        rows are equal.
    """

    terms: int
    rows: Callable[[], np.ndarray]

    @property
    def regenerations(self) -> int:
        return self.terms - 1


@dataclasses.dataclass(frozen=True, eq=False)
class GeometricSums(Streaming):
    """Geometric sums, which compute the noise from d stored sums of earlier normals.

    From the step's standard normals `z` and the sums `s[m]`, which are initially zero,
    a step computes the noise `y = z + sum_m scales[m] s[m]`, then updates
    `s[m] = decays[m] s[m] + z`.

    Attributes:
      scales: factors of the sums in the output, shape [d].
      decays: factors by which each step multiplies the sums, shape [d].
    """

    scales: np.ndarray
    decays: np.ndarray

    @property
    def memory_vectors(self) -> int:
        return self.decays.size
