"""Accounting of cyclic Poisson sampling for banded strategies; DP-SGD is one part.

The examples are split into `b` parts; step `i` takes each example of part `i mod b` with
probability `q`. If `C` has at most `b` bands, a run is as private as `ceil(n / b)`
Poisson-sampled Gaussian queries (arXiv:2306.08153, Theorem 4 and Theorem 5), each with
sensitivity `kappa`, the largest column norm of `C`.

`poisson_tilted` composes them: its errors are on the safe side, and relative to delta.
"""

from __future__ import annotations

import dataclasses
import math

import dp_accounting
import numpy as np

from tf_bandmf import matrices
from tf_bandmf.accounting import gaussian, poisson_tilted, root_finding
from tf_bandmf.accounting.base import DeltaAccountant
from tf_bandmf.accounting.checks import (
    LARGEST_STATED_EPSILON,
    check_delta,
    check_positive,
    no_privacy,
    whole_number,
)
from tf_bandmf.accounting.guarantee import ZERO_OUT

NAME = "Poisson-sampled Gaussian queries (tilted Fourier transform)"

# Below the least epsilon none is stated. The relative tolerance of rough noise.
_LEAST_EPSILON, _ROUGH_TOLERANCE = 1e-6, 5e-3


def check_bands(matrix: matrices.LowerTriangular, num_parts: int) -> None:
    """Raises ValueError unless Theorem 4 and 5 cover the strategy with so many parts."""
    if matrix.bands <= num_parts:
        return
    if matrix.bands >= matrix.num_rows:
        raise ValueError(
            f"Cyclic sampling amplifies only banded strategies, found one without bands "
            f"({matrix.bands} of {matrix.num_rows}), such as DP-lambda-CGD or BISR. "
            f"Use BallsInBins for it, or a banded strategy (bsr, banded Toeplitz)."
        )
    raise ValueError(
        f"The strategy must have at most as many bands as there are parts, found "
        f"{matrix.bands} bands and {num_parts} parts: one example's participations "
        f"would overlap. Use num_parts >= {matrix.bands}, fewer bands, or BallsInBins."
    )


def column_norm(matrix: matrices.LowerTriangular) -> float:
    """kappa, the largest column norm of `C`.

    Raises:
      ValueError: if it is not finite and > 0.
    """
    largest = float(np.max(matrix.column_norms()))
    if not (math.isfinite(largest) and largest > 0.0):
        raise ValueError(f"The column norms must be finite and > 0, found {largest}.")
    return largest


@dataclasses.dataclass(frozen=True)
class CyclicPoissonAccountant(DeltaAccountant):
    """(epsilon, delta) of `num_queries` Poisson-sampled Gaussian queries.

    Formal guarantee: under add-or-remove adjacency (equal to zero-out for these
    queries), errors of discretization and truncation increase the results.

    Args:
      num_queries: `ceil(n / b)`, how often one example can be sampled.
      sampling_probability: q in (0, 1], with which an example of the part whose turn it
        is takes part in a step.
      column_norm: kappa, the sensitivity of each query.
    """

    num_queries: int
    sampling_probability: float
    column_norm: float = 1.0
    claims = ((NAME, "exact", ZERO_OUT),)
    is_amplified = True

    def __post_init__(self) -> None:
        whole_number("num_queries", self.num_queries)
        if not 0.0 < self.sampling_probability <= 1.0:
            raise ValueError(
                f"sampling_probability must be in (0, 1], found "
                f"{self.sampling_probability}."
            )
        check_positive("column_norm", self.column_norm)

    @classmethod
    def of_strategy(
        cls,
        matrix: matrices.LowerTriangular,
        num_parts: int,
        sampling_probability: float,
    ) -> CyclicPoissonAccountant:
        """The accountant for a strategy matrix.

        Raises:
          ValueError: if the strategy has more bands than there are parts.
        """
        check_bands(matrix, num_parts)
        queries = -(-matrix.num_rows // num_parts)
        return cls(queries, sampling_probability, column_norm(matrix))

    def event(self, noise_stddev: float) -> dp_accounting.DpEvent:
        """The run as a composition of `num_queries` Poisson-sampled Gaussian events.

        Example F.1 of arXiv:2306.08153 divides by `floor(n / b)` and composes
        `ceil(m / b)` times: its n and m are exchanged. There are `ceil(n / b)` queries,
        each on a part of `floor(m / b)` of the m examples.
        """
        event: dp_accounting.DpEvent = dp_accounting.GaussianDpEvent(
            noise_stddev / self.column_norm
        )
        if self.sampling_probability < 1.0:
            event = dp_accounting.PoissonSampledDpEvent(
                self.sampling_probability, event
            )
        return dp_accounting.SelfComposedDpEvent(event, self.num_queries)

    def delta(self, epsilon: float, noise_stddev: float) -> float:
        """Delta at epsilon.

        Raises:
          ValueError: on invalid input.
        """
        check_positive("noise_stddev", noise_stddev)
        check_positive("epsilon", epsilon)
        return self._delta(epsilon, noise_stddev)

    def epsilon(self, delta: float, noise_stddev: float) -> float:
        """Epsilon at delta, rounded up.

        Raises:
          ValueError: on invalid input, or if epsilon is above `LARGEST_STATED_EPSILON`.
        """
        check_positive("noise_stddev", noise_stddev)
        check_delta(delta)
        unamplified = self._unamplified(noise_stddev)
        if self.sampling_probability == 1.0:
            return gaussian.gaussian_epsilon(unamplified, delta)
        upper = LARGEST_STATED_EPSILON
        if gaussian.gaussian_delta(unamplified, upper) <= delta:
            upper = gaussian.gaussian_epsilon(unamplified, delta)
        elif self._delta(upper, noise_stddev) > delta:
            raise no_privacy(noise_stddev, delta, upper)
        if self._delta(_LEAST_EPSILON, noise_stddev) <= delta:
            return min(_LEAST_EPSILON, upper)

        def excess(log_epsilon: float, resolution: float) -> float:
            found = self._delta(math.exp(log_epsilon), noise_stddev, resolution)
            return root_finding.log(found) - math.log(delta)

        root = root_finding.near_root_of(
            lambda x: excess(x, poisson_tilted.ROUGH),
            lambda x: excess(x, poisson_tilted.FINE),
            # Between the whole of the loss and the sampled part of it.
            math.log(upper) + 0.5 * math.log(self.sampling_probability),
            math.log(upper),
        )
        return root_finding.to_safe_side(
            math.exp(root), lambda epsilon: self._delta(epsilon, noise_stddev) <= delta
        )

    def calibrate_noise_stddev(self, epsilon: float, delta: float) -> float:
        """The smallest noise for the budget, rounded up.

        It was checked: `self.delta(epsilon, result) <= delta`.

        Raises:
          ValueError: on invalid input, or if no useful noise gives the budget.
        """
        largest = self._largest_noise(epsilon, delta)
        if self.sampling_probability == 1.0:
            return largest
        found = root_finding.smallest_noise(
            lambda noise: self._delta(epsilon, noise, poisson_tilted.ROUGH),
            lambda noise: self._delta(epsilon, noise),
            delta,
            largest,
        )
        return min(found, largest)

    def rough_noise_stddev(
        self, epsilon: float, delta: float, near: float | None = None
    ) -> float:
        """Noise for the budget up to about one percent, to compare runs by: no guarantee.

        Raises:
          ValueError: as `calibrate_noise_stddev`.
        """
        largest = self._largest_noise(epsilon, delta)
        if self.sampling_probability == 1.0:
            return largest

        def excess(log_noise: float) -> float:
            found = self._delta(epsilon, math.exp(log_noise), poisson_tilted.ROUGH)
            return root_finding.log(found) - root_finding.log(delta)

        if near is None:
            # Where noise is large it is that of all steps times the probability.
            near = 1.5 * self.sampling_probability * largest
        return math.exp(
            root_finding.near_root(
                excess, math.log(near), math.log(largest), _ROUGH_TOLERANCE
            )
        )

    def _largest_noise(self, epsilon: float, delta: float) -> float:
        """The noise without amplification.

        Raises:
          ValueError: on invalid input, or if no noise at all would give the budget.
        """
        check_delta(delta)
        sampled = -math.expm1(
            self.num_queries * math.log1p(-min(self.sampling_probability, 1.0 - 1e-16))
        )
        if sampled <= delta:
            raise ValueError(
                f"delta = {delta:g} is at least the probability {sampled:.3g} that an "
                f"example is used at all: any noise would do. Use a delta far below it."
            )
        unamplified = gaussian.calibrate_noise_stddev(epsilon, delta)
        return unamplified * math.sqrt(self.num_queries) * self.column_norm

    def _unamplified(self, noise_stddev: float) -> float:
        """Noise per unit of sensitivity if every query used all examples."""
        return noise_stddev / (self.column_norm * math.sqrt(self.num_queries))

    def _delta(
        self,
        epsilon: float,
        noise_stddev: float,
        resolution: float = poisson_tilted.FINE,
    ) -> float:
        """Delta by the tilted transform, or without amplification."""
        largest = gaussian.gaussian_delta(self._unamplified(noise_stddev), epsilon)
        if self.sampling_probability == 1.0:
            return largest
        found = poisson_tilted.delta(
            self.sampling_probability,
            noise_stddev / self.column_norm,
            self.num_queries,
            epsilon,
            resolution,
        )
        return min(found, largest)
