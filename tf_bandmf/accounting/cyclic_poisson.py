"""Accounting of cyclic Poisson sampling for banded strategies; DP-SGD is one part.

The examples are split into `b` parts; step `i` takes each example of part `i mod b` with
probability `q`. If `C` has at most `b` bands, a run is as private as `ceil(n / b)`
Poisson-sampled Gaussian queries (amplified-banded-mf, Theorem 4 and Theorem 5), each with
sensitivity `kappa`, the largest column norm of `C`.

`noise_multiplier` here is always the noise standard deviation per unit of **column norm**
(per `kappa`), neither per unit of sensitivity nor on the raw `C`.

Composition is that of dp-accounting's privacy loss distributions, whose discretization
errs to the safe side.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import dp_accounting
import numpy as np
from dp_accounting.pld import pld_privacy_accountant

from tf_bandmf import bands
from tf_bandmf.accounting import gaussian, root_finding

NAME = "Poisson-sampled Gaussian queries (dp-accounting, privacy loss distributions)"

# Discretization of the privacy loss, as a part of epsilon.
_INTERVAL, _ROUGH_INTERVAL = 1e-4, 2e-3
# Rounding errors of its convolutions are below this, and smaller deltas are not asked for.
_ROUNDING, SMALLEST_DELTA = 1e-13, 1e-12
_SMALLEST_INTERVAL, _LARGEST_INTERVAL = 1e-6, 1e-2
_MOST_REFINEMENTS = 6


def check_bands(strategy: bands.LowerTriangular, num_parts: int) -> None:
    """Raises ValueError unless Theorem 4 and 5 cover the strategy with so many parts."""
    if strategy.bands <= num_parts:
        return
    if strategy.bands >= strategy.num_rows:
        raise ValueError(
            f"Cyclic sampling amplifies only banded strategies, found one without bands "
            f"({strategy.bands} of {strategy.num_rows}), such as DP-lambda-CGD or BISR. "
            f"Use BallsInBins for it, or a banded strategy (bsr, banded Toeplitz)."
        )
    raise ValueError(
        f"The strategy must have at most as many bands as there are parts, found "
        f"{strategy.bands} bands and {num_parts} parts: one example's participations "
        f"would overlap. Use num_parts >= {strategy.bands}, fewer bands, or BallsInBins."
    )


def column_norm(strategy: bands.LowerTriangular) -> float:
    """kappa, the largest column norm of `C`."""
    largest = float(np.max(strategy.column_norms()))
    if not (math.isfinite(largest) and largest > 0.0):
        raise ValueError(f"The column norms must be finite and > 0, found {largest}.")
    return largest


@dataclasses.dataclass(frozen=True)
class CyclicPoissonAccountant:
    """(epsilon, delta) of `num_queries` Poisson-sampled Gaussian queries.

    Formal guarantee: under add-or-remove adjacency (equal to zero-out for these
    queries), errors of discretization and truncation increase the results.

    Args:
      num_queries: `ceil(n / b)`, how often one example can be sampled.
      sampling_probability: q in (0, 1], with which an example of the part whose turn it
        is takes part in a step.
    """

    num_queries: int
    sampling_probability: float

    def __post_init__(self) -> None:
        if isinstance(self.num_queries, bool) or self.num_queries < 1:
            raise ValueError(f"num_queries must be >= 1, found {self.num_queries!r}.")
        if not 0.0 < self.sampling_probability <= 1.0:
            raise ValueError(
                f"sampling_probability must be in (0, 1], found "
                f"{self.sampling_probability}."
            )

    @classmethod
    def of_strategy(
        cls,
        strategy: bands.LowerTriangular,
        num_parts: int,
        sampling_probability: float,
    ) -> tuple[CyclicPoissonAccountant, float]:
        """The accountant for a strategy, and kappa.

        Raises:
          ValueError: if the strategy has more bands than there are parts.
        """
        check_bands(strategy, num_parts)
        queries = -(-strategy.num_rows // num_parts)
        return cls(queries, sampling_probability), column_norm(strategy)

    def event(self, noise_multiplier: float) -> dp_accounting.DpEvent:
        """The `DpEvent`; `noise_multiplier` per unit of column norm.

        Example F.1 of amplified-banded-mf divides by `floor(n / b)` and composes
        `ceil(m / b)` times: its n and m are exchanged. There are `ceil(n / b)` queries,
        each on a part of `floor(m / b)` of the m examples.
        """
        event: dp_accounting.DpEvent = dp_accounting.GaussianDpEvent(noise_multiplier)
        if self.sampling_probability < 1.0:
            event = dp_accounting.PoissonSampledDpEvent(
                self.sampling_probability, event
            )
        return dp_accounting.SelfComposedDpEvent(event, self.num_queries)

    def delta(self, epsilon: float, noise_multiplier: float) -> float:
        """Delta at epsilon; `noise_multiplier` per unit of column norm.

        Raises:
          ValueError: on invalid input.
        """
        gaussian.check_positive("noise_multiplier", noise_multiplier)
        gaussian.check_positive("epsilon", epsilon)
        return self._delta(epsilon, noise_multiplier, _INTERVAL)

    def epsilon(self, delta: float, noise_multiplier: float) -> float:
        """Epsilon at delta, rounded up; `noise_multiplier` per unit of column norm.

        Raises:
          ValueError: on invalid input, or if delta is below 1e-12.
        """
        gaussian.check_positive("noise_multiplier", noise_multiplier)
        self._check_delta(delta)
        unamplified = noise_multiplier / math.sqrt(self.num_queries)
        upper = gaussian.gaussian_epsilon(unamplified, delta)
        if self.sampling_probability == 1.0 or upper == 0.0:
            return upper
        # Again until the discretization is that of the result: then `_delta` is asked
        # about the same distribution, whose inverse this is.
        interval, wanted = 0.0, _interval(_ROUGH_INTERVAL * upper)
        found = upper
        for _ in range(_MOST_REFINEMENTS):
            if wanted == interval:
                break
            interval = wanted
            accountant = self._accountant(noise_multiplier, interval)
            found = min(upper, float(accountant.get_epsilon(delta - _ROUNDING)))
            if found <= 0.0:
                return 0.0
            wanted = _interval(_INTERVAL * found)
        return root_finding.to_safe_side(
            found, lambda e: self._delta(e, noise_multiplier, _INTERVAL) <= delta
        )

    def calibrate_noise_multiplier(self, epsilon: float, delta: float) -> float:
        """The smallest noise per unit of **column norm** for the budget, rounded up.

        It was checked: `self.delta(epsilon, result) <= delta`.

        Raises:
          ValueError: on invalid input, if no useful noise gives the budget, or if delta
            is below 1e-12.
        """
        self._check_delta(delta)
        unamplified = gaussian.calibrate_noise_multiplier(epsilon, delta)
        largest = unamplified * math.sqrt(self.num_queries)
        if self.sampling_probability == 1.0:
            return largest
        return root_finding.smallest_noise(
            lambda noise: self._delta(epsilon, noise, _ROUGH_INTERVAL),
            lambda noise: self._delta(epsilon, noise, _INTERVAL),
            delta,
            largest,
        )

    def _delta(self, epsilon: float, noise_multiplier: float, interval: float) -> float:
        unamplified = noise_multiplier / math.sqrt(self.num_queries)
        largest = gaussian.gaussian_delta(unamplified, epsilon)
        if self.sampling_probability == 1.0:
            return largest
        accountant = self._accountant(noise_multiplier, _interval(interval * epsilon))
        delta = float(accountant.get_delta(epsilon))
        if not -_ROUNDING <= delta <= 1.0:
            raise ArithmeticError(
                f"The accountant returned delta = {delta} for noise_multiplier = "
                f"{noise_multiplier}, epsilon = {epsilon}."
            )
        return min(max(delta, 0.0) + _ROUNDING, largest)

    def _accountant(
        self, noise_multiplier: float, interval: float
    ) -> pld_privacy_accountant.PLDAccountant:
        return _composed(self, noise_multiplier, interval)

    def _check_delta(self, delta: float) -> None:
        gaussian.check_delta(delta)
        if self.sampling_probability < 1.0 and delta < SMALLEST_DELTA:
            raise ValueError(
                f"delta must be >= {SMALLEST_DELTA:g} under Poisson sampling, found "
                f"{delta!r}: rounding errors of the composition reach "
                f"{_ROUNDING:g}. Use a larger delta, or a participation without "
                f"amplification by sampling (FixedEpochOrder, MinSep)."
            )


def _interval(interval: float) -> float:
    """The next lower power of two within limits: close values have the same one."""
    interval = min(max(interval, _SMALLEST_INTERVAL), _LARGEST_INTERVAL)
    return float(2.0 ** math.floor(math.log2(interval)))


@functools.lru_cache(maxsize=2)
def _composed(
    queries: CyclicPoissonAccountant, noise_multiplier: float, interval: float
) -> pld_privacy_accountant.PLDAccountant:
    accountant = pld_privacy_accountant.PLDAccountant(
        value_discretization_interval=interval
    )
    accountant.compose(queries.event(noise_multiplier))
    return accountant
