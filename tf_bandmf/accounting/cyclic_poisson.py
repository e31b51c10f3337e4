"""Accounting of cyclic Poisson sampling for banded strategies; DP-SGD is one part.

The examples are split into `b` parts; step `i` takes each example of part `i mod b` with
probability `q`. If `C` has at most `b` bands, a run is as private as `ceil(n / b)`
Poisson-sampled Gaussian queries (arXiv:2306.08153, Theorem 4 and Theorem 5), each with
sensitivity `kappa`, the largest column norm of `C`.

Composition is that of dp-accounting's privacy loss distributions, whose discretization
errs to the safe side. Its Fourier transforms do not: raised to the power of the number of
queries, each frequency has a relative error of that many roundings, and delta one of about
`num_queries 2^-53` in absolute terms, in either direction (measured: 1e-13 for 1,180
queries, 1e-12 for 11,721). Four times that is added. Where delta is not far above it, and
for very many queries, `poisson_tilted` composes them: its errors are relative.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import dp_accounting
import numpy as np
import scipy.optimize
from dp_accounting.pld import pld_privacy_accountant

from tf_bandmf import matrices
from tf_bandmf.accounting import gaussian, poisson_tilted, root_finding
from tf_bandmf.accounting.base import Accountant, meaningful
from tf_bandmf.accounting.checks import (
    LARGEST_EPSILON,
    check_delta,
    check_positive,
    whole_number,
)
from tf_bandmf.accounting.event_losses import rounding_of_transforms
from tf_bandmf.accounting.guarantee import ZERO_OUT, Calibration, Guarantee

NAME = "Poisson-sampled Gaussian queries (dp-accounting, privacy loss distributions)"
TILTED_NAME = "Poisson-sampled Gaussian queries (tilted Fourier transform)"

# Discretization of the privacy loss, as a part of epsilon.
_INTERVAL, _ROUGH_INTERVAL = 1e-4, 2e-3
# Deltas below so many times the errors of its convolutions are those of the tilted
# transform, and all of more queries.
_NEAR_ROUNDING, _MOST_QUERIES = 1e3, 100_000
_SMALLEST_INTERVAL, _LARGEST_INTERVAL = 1e-6, 1e-2
_MOST_REFINEMENTS = 6
# Relative tolerance of epsilon by the tilted transform, and of rough noise.
_SEARCH_TOLERANCE, _LEAST_EPSILON = 1e-5, 1e-6
_ROUGH_TOLERANCE = 5e-3


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
class CyclicPoissonAccountant(Accountant):
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
    claims = ((NAME, "exact", ZERO_OUT), (TILTED_NAME, "exact", ZERO_OUT))

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
        return self._delta(epsilon, noise_stddev, _INTERVAL)

    def epsilon(self, delta: float, noise_stddev: float) -> float:
        """Epsilon at delta, rounded up.

        Raises:
          ValueError: on invalid input.
        """
        check_positive("noise_stddev", noise_stddev)
        check_delta(delta)
        unamplified = self._unamplified(noise_stddev)
        if self.sampling_probability == 1.0:
            return gaussian.gaussian_epsilon(unamplified, delta)
        upper = LARGEST_EPSILON
        if gaussian.gaussian_delta(unamplified, upper) <= delta:
            upper = gaussian.gaussian_epsilon(unamplified, delta)
        if upper == 0.0:
            return upper
        if self._is_tilted(delta):
            return self._tilted_epsilon(delta, noise_stddev, upper)
        # Again until the discretization is that of the result: then `_delta` is asked
        # about the same distribution, whose inverse this is.
        interval, wanted = 0.0, _interval(_ROUGH_INTERVAL * upper)
        found = upper
        for _ in range(_MOST_REFINEMENTS):
            if wanted == interval:
                break
            interval = wanted
            found = _composed_epsilon(
                self, noise_stddev, interval, delta - self._rounding
            )
            found = min(upper, found)
            if found <= 0.0:
                return 0.0
            wanted = _interval(_INTERVAL * found)

        def is_safe(epsilon: float) -> bool:
            return self._delta(epsilon, noise_stddev, _INTERVAL) <= delta

        if found >= LARGEST_EPSILON and not is_safe(found):
            raise _no_privacy(noise_stddev, delta)
        return root_finding.to_safe_side(found, is_safe)

    def _tilted_epsilon(self, delta: float, noise_stddev: float, upper: float) -> float:
        """Epsilon by the tilted transform, rounded up and checked."""

        def found(epsilon: float) -> float:
            return self._tilted(epsilon, noise_stddev, poisson_tilted.FINE)

        def excess(epsilon: float) -> float:
            return root_finding.log(found(epsilon)) - math.log(delta)

        least = min(_LEAST_EPSILON, upper)
        if found(least) <= delta:
            return least
        if excess(upper) >= 0.0:
            if upper >= LARGEST_EPSILON:
                raise _no_privacy(noise_stddev, delta)
            return upper
        root = scipy.optimize.brentq(excess, least, upper, rtol=_SEARCH_TOLERANCE)
        return root_finding.to_safe_side(
            float(root), lambda epsilon: found(epsilon) <= delta
        )

    def calibrate_noise_stddev(self, epsilon: float, delta: float) -> float:
        """The smallest noise for the budget, rounded up.

        It was checked: `self.delta(epsilon, result) <= delta`.

        Raises:
          ValueError: on invalid input, or if no useful noise gives the budget.
        """
        check_delta(delta)
        unamplified = gaussian.calibrate_noise_stddev(epsilon, delta)
        largest = unamplified * math.sqrt(self.num_queries) * self.column_norm
        if self.sampling_probability == 1.0:
            return largest
        if self._is_tilted(delta):
            found = root_finding.smallest_noise(
                lambda noise: self._tilted(epsilon, noise, poisson_tilted.ROUGH),
                lambda noise: self._tilted(epsilon, noise, poisson_tilted.FINE),
                delta,
                largest,
            )
            return min(found, largest)
        found = root_finding.smallest_noise(
            lambda noise: self._delta(epsilon, noise, _ROUGH_INTERVAL),
            lambda noise: self._delta(epsilon, noise, _INTERVAL),
            delta,
            largest,
        )
        return min(found, largest)

    def rough_noise_stddev(
        self, epsilon: float, delta: float, near: float | None = None
    ) -> float:
        """Noise for the budget up to about one percent, to compare runs by: no guarantee.

        A coarse discretization, and a few values of it: a second where
        `calibrate_noise_stddev` takes many.

        Raises:
          ValueError: as `calibrate_noise_stddev`.
        """
        check_delta(delta)
        unamplified = gaussian.calibrate_noise_stddev(epsilon, delta)
        largest = unamplified * math.sqrt(self.num_queries) * self.column_norm
        if self.sampling_probability == 1.0:
            return largest

        is_tilted = self._is_tilted(delta)

        def excess(log_noise: float) -> float:
            noise = math.exp(log_noise)
            if is_tilted:
                found = self._tilted(epsilon, noise, poisson_tilted.ROUGH)
            else:
                found = self._delta(epsilon, noise, _ROUGH_INTERVAL)
            return root_finding.log(found) - root_finding.log(delta)

        if near is None:
            # Where noise is large it is that of all steps times the probability.
            near = 1.5 * self.sampling_probability * largest
        return math.exp(
            root_finding.near_root(
                excess, math.log(near), math.log(largest), _ROUGH_TOLERANCE
            )
        )

    def calibrate(self, epsilon: float, delta: float) -> Calibration:
        stddev = self.calibrate_noise_stddev(epsilon, delta)
        guarantee = Guarantee(epsilon, delta, "exact", self._name(delta))
        return Calibration(stddev, guarantee, is_amplified=True)

    def guarantee(self, noise_stddev: float, delta: float) -> Guarantee:
        epsilon = meaningful(self.epsilon(delta, noise_stddev), noise_stddev, delta)
        return Guarantee(epsilon, delta, "exact", self._name(delta))

    def confirms(self, noise_stddev: float, guarantee: Guarantee) -> bool:
        if guarantee.accountant == TILTED_NAME:
            found = self._tilted(guarantee.epsilon, noise_stddev, poisson_tilted.FINE)
            return found <= guarantee.delta * (1.0 + 1e-6)
        # Another run of the transforms may differ by its rounding, of which `_delta` adds
        # four times as much: half of that still leaves more than the error.
        slack = 0.5 * self._rounding
        found = self._delta(guarantee.epsilon, noise_stddev, _INTERVAL, slack)
        return found <= guarantee.delta * (1.0 + 1e-6)

    def _unamplified(self, noise_stddev: float) -> float:
        """Noise per unit of sensitivity if every query used all examples."""
        return noise_stddev / (self.column_norm * math.sqrt(self.num_queries))

    def _delta(
        self, epsilon: float, noise_stddev: float, interval: float, slack: float = 0.0
    ) -> float:
        largest = gaussian.gaussian_delta(self._unamplified(noise_stddev), epsilon)
        if self.sampling_probability == 1.0:
            return largest
        if self.num_queries > _MOST_QUERIES:
            return self._tilted(epsilon, noise_stddev, poisson_tilted.FINE)
        interval = _interval(interval * epsilon)
        delta = _composed_delta(self, noise_stddev, interval, epsilon)
        rounding = self._rounding
        if not -rounding <= delta <= 1.0 + rounding:
            raise ArithmeticError(
                f"The accountant returned delta = {delta} for noise_stddev = "
                f"{noise_stddev}, epsilon = {epsilon}."
            )
        delta = max(delta, 0.0) + rounding - slack
        if delta < _NEAR_ROUNDING * rounding:
            found = self._tilted(epsilon, noise_stddev, poisson_tilted.FINE)
            delta = min(delta, found)
        return min(delta, largest)

    def _tilted(self, epsilon: float, noise_stddev: float, resolution: float) -> float:
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

    def _is_tilted(self, delta: float) -> bool:
        """Whether the tilted transform decides at delta."""
        if self.sampling_probability == 1.0:
            return False
        is_near = delta <= _NEAR_ROUNDING * self._rounding
        return is_near or self.num_queries > _MOST_QUERIES

    def _name(self, delta: float) -> str:
        return TILTED_NAME if self._is_tilted(delta) else NAME

    @property
    def _rounding(self) -> float:
        """What the composition may err by, absolute."""
        return rounding_of_transforms(self.num_queries)


def _no_privacy(noise_stddev: float, delta: float) -> ValueError:
    return ValueError(
        f"noise_stddev = {noise_stddev} gives no meaningful privacy: epsilon > "
        f"{LARGEST_EPSILON:g} at delta = {delta}. Add noise."
    )


def _interval(interval: float) -> float:
    """The next lower power of two within limits: close values have the same one."""
    interval = min(max(interval, _SMALLEST_INTERVAL), _LARGEST_INTERVAL)
    return float(2.0 ** math.floor(math.log2(interval)))


@functools.lru_cache(maxsize=2)
def _composed(
    queries: CyclicPoissonAccountant, noise_stddev: float, interval: float
) -> pld_privacy_accountant.PLDAccountant:
    accountant = pld_privacy_accountant.PLDAccountant(
        value_discretization_interval=interval
    )
    accountant.compose(queries.event(noise_stddev))
    return accountant


# Plans, tables and searches for bands ask for the same numbers again and again.
@functools.lru_cache(maxsize=1024)
def _composed_delta(
    queries: CyclicPoissonAccountant, noise: float, interval: float, epsilon: float
) -> float:
    return float(_composed(queries, noise, interval).get_delta(epsilon))


@functools.lru_cache(maxsize=1024)
def _composed_epsilon(
    queries: CyclicPoissonAccountant, noise: float, interval: float, delta: float
) -> float:
    return float(_composed(queries, noise, interval).get_epsilon(delta))
