"""Accounting of cyclic fixed-size sampling without replacement: a proven bound.

The examples are split into `b` parts of `floor(m / b)`; step `i` takes `B` examples of
part `i mod b`, uniformly without replacement (arXiv:2306.08153, Alg. 2, Theorem 4).
The `ceil(n / b)` queries are composed by Renyi DP with the bound of Wang, Balle,
Kasiviswanathan (2019, arXiv:1808.00087, Theorem 27), as dp-accounting has it. That
theorem is about **replacing one** example: contributions differ by up to twice the
clipping norm, so that the queries count with half of the noise. Setting an example's
contribution to zero is one such replacement: zero-out adjacency is included.

dp-accounting computes the bound in float64: for much noise `exp(1 / sigma^2) - 1` loses
digits, and the Renyi DP lies up to `2^-53 sigma^2` below the theorem's, relative (measured:
1e-9 at sigma = 10^4; its higher differences err upwards). Queries count with noise that is
smaller by so much and more, and delta, which is the exponential of up to 10^7, with a
relative margin.

Without amplification the run is also a Gaussian mechanism; whichever bound is better
counts. These are not Poisson's numbers, which hold for another sampler.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import dp_accounting
from dp_accounting import rdp

from tf_bandmf import matrices
from tf_bandmf.accounting import gaussian
from tf_bandmf.accounting.checks import check_positive, whole_number
from tf_bandmf.accounting.cyclic_poisson import check_bands, column_norm
from tf_bandmf.accounting.gaussian import DeltaAccountant
from tf_bandmf.accounting.guarantee import (
    REPLACE_ONE,
    UNAMPLIFIED,
    ZERO_OUT,
    Guarantee,
)

# Rounding of the Renyi DP, relative to the noise: units of 1 and of sigma^2; of delta.
_NOISE_UNIT, _SMALL_NOISE, _DELTA_MARGIN = 2.0**-50, 1e3, 1e-7

NAME = "sampling without replacement (dp-accounting, Renyi DP; replace-one)"


@dataclasses.dataclass(frozen=True)
class CyclicFixedSizeAccountant(DeltaAccountant):
    """(epsilon, delta) of `num_queries` Gaussian queries on fixed-size samples.

    Formal guarantee: an upper bound for replace-one adjacency, which includes zero-out
    adjacency with a public number of examples.

    Args:
      num_queries: `ceil(n / b)`.
      part_size: `floor(m / b)`, examples of each part.
      batch_size: B <= part_size.
      column_norm: kappa, the sensitivity of each query to zeroing an example out.
    """

    num_queries: int
    part_size: int
    batch_size: int
    column_norm: float = 1.0
    claims = (
        (NAME, "bound", REPLACE_ONE),
        (f"fixed size {UNAMPLIFIED}", "bound", ZERO_OUT),
    )
    is_amplified = True

    def __post_init__(self) -> None:
        for name in ("num_queries", "part_size", "batch_size"):
            whole_number(name, getattr(self, name))
        if self.batch_size > self.part_size:
            raise ValueError(
                f"batch_size must be <= part_size = {self.part_size}, found "
                f"{self.batch_size}."
            )
        check_positive("column_norm", self.column_norm)

    @classmethod
    def of_strategy(
        cls,
        matrix: matrices.LowerTriangular,
        num_parts: int,
        part_size: int,
        batch_size: int,
    ) -> CyclicFixedSizeAccountant:
        """The accountant for a strategy matrix.

        Raises:
          ValueError: if the strategy has more bands than there are parts.
        """
        check_bands(matrix, num_parts)
        queries = -(-matrix.num_rows // num_parts)
        return cls(queries, part_size, batch_size, column_norm(matrix))

    def event(self, noise_stddev: float) -> dp_accounting.DpEvent:
        """The run as a composition of events sampled without replacement."""
        # Replacing moves a query by up to twice the clipping norm.
        gaussian_event = dp_accounting.GaussianDpEvent(
            0.5 * noise_stddev / self.column_norm
        )
        sampled = dp_accounting.SampledWithoutReplacementDpEvent(
            self.part_size, self.batch_size, gaussian_event
        )
        return dp_accounting.SelfComposedDpEvent(sampled, self.num_queries)

    @property
    def sampling_probability(self) -> float:  # type: ignore[override]
        return self.batch_size / self.part_size

    @property
    def whole_sensitivity(self) -> float:
        return self.column_norm * math.sqrt(self.num_queries)

    def sampled_delta(
        self, epsilon: float, noise_stddev: float, rough: bool = False
    ) -> float:
        delta = _composed_delta(self, self._counted(noise_stddev), epsilon)
        if not 0.0 <= delta <= 1.0:
            raise ArithmeticError(
                f"The accountant returned delta = {delta} for noise_stddev = "
                f"{noise_stddev}, epsilon = {epsilon}."
            )
        return min(delta * (1.0 + _DELTA_MARGIN), 1.0)

    def rough_noise_stddev(
        self, epsilon: float, delta: float, near: float | None = None
    ) -> float:
        # Nothing is cheaper, and what was found is kept for the plan.
        return self.calibrate_noise_stddev(epsilon, delta)

    def claims_sampling(self, epsilon: float, noise_stddev: float) -> bool:
        """Whether `delta` rests on sampling: then its adjacency is replace-one."""
        whole = gaussian.gaussian_delta(self.multiplier(noise_stddev), epsilon)
        return self.delta(epsilon, noise_stddev) < whole

    def _stated(self, epsilon: float, delta: float, noise_stddev: float) -> Guarantee:
        claim = self.claims[not self.claims_sampling(epsilon, noise_stddev)]
        name, kind, adjacency = claim
        return Guarantee(epsilon, delta, kind, name, adjacency)

    def _counted(self, noise_stddev: float) -> float:
        """The noise, smaller by what rounding of the Renyi DP makes of it."""
        unit = 0.5 * noise_stddev / self.column_norm
        return noise_stddev / (1.0 + _NOISE_UNIT * (_SMALL_NOISE + unit**2))


@functools.lru_cache(maxsize=2)
def _composed(
    queries: CyclicFixedSizeAccountant, noise_stddev: float
) -> rdp.RdpAccountant:
    accountant = rdp.RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    accountant.compose(queries.event(noise_stddev))
    return accountant


# Calibration, plans and tables ask for the same numbers again.
@functools.lru_cache(maxsize=1024)
def _composed_delta(
    queries: CyclicFixedSizeAccountant, noise_stddev: float, epsilon: float
) -> float:
    try:
        return float(_composed(queries, noise_stddev).get_delta(epsilon))
    except ValueError:  # the logarithm of a Renyi DP that 1 hides
        return 1.0
