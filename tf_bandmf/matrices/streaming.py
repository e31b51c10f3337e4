"""Descriptions of how the noise generator computes the rows of `M^-1 Z` step by step.

Every matrix returns one of these descriptions from `LowerTriangular.streaming`.
`tf_bandmf.noise` implements a recurrence for each class.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Callable

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Streaming(abc.ABC):
    """The base class: one way to compute `y = diag(row_scale) M^-1 z` step by step.

    Attributes:
      num_rows: n.
      row_scale: factors of the rows, shape [n], or None for ones.
    """

    num_rows: int
    row_scale: np.ndarray | None = dataclasses.field(default=None, kw_only=True)

    @property
    def memory_vectors(self) -> int:
        """The number of model-sized vectors that are stored between steps."""
        return 0

    @property
    def regenerations(self) -> int:
        """The maximum number of earlier rows of `Z` that a step regenerates."""
        return 0

    def scaled(self, factors: np.ndarray) -> Streaming:
        """Returns a copy in which row `i` is also multiplied by `factors[i]`."""
        scale = factors if self.row_scale is None else factors * self.row_scale
        return dataclasses.replace(self, row_scale=scale)


@dataclasses.dataclass(frozen=True, eq=False)
class ForwardSubstitution(Streaming):
    """Stores outputs: `y[i] = (z[i] - sum_{0<j<terms} M[i, i-j] y[i-j]) / M[i, i]`.

    Attributes:
      terms: number of bands of `M`.
      rows: function that returns `M[i, i - j]`, shape [n, terms], or [1, terms] if all rows
        are equal.
    """

    terms: int
    rows: Callable[[], np.ndarray]

    @property
    def memory_vectors(self) -> int:
        return self.terms - 1


@dataclasses.dataclass(frozen=True, eq=False)
class Regeneration(Streaming):
    """Regenerates `z`: `y[i] = sum_{j<terms} N[i, i-j] z[i-j]` with `N = M^-1`.

    Attributes:
      terms: number of bands of `N`.
      rows: function that returns `N[i, i - j]`, shape [n, terms], or [1, terms] if all rows
        are equal.
    """

    terms: int
    rows: Callable[[], np.ndarray]

    @property
    def regenerations(self) -> int:
        return self.terms - 1


@dataclasses.dataclass(frozen=True, eq=False)
class GeometricSums(Streaming):
    """Stores sums `s`: `y = z + sum_m scales[m] s[m]`; `s[m] = decays[m] s[m] + z`.

    Attributes:
      scales: factors of the sums in the output, shape [d].
      decays: factors of the sums from step to step, shape [d].
    """

    scales: np.ndarray
    decays: np.ndarray

    @property
    def memory_vectors(self) -> int:
        return self.decays.size
