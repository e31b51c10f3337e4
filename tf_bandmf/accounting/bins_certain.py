"""Accounting of balls in bins without simulation: upper bounds that hold for certain.

Direction "remove" by the best of three: bin after bin (`bins_chain`), which is tight where
the Gram matrix is close to a `bins_kernel.Kernel`; moments of the likelihood ratio
(`bins_moments`), also given the own bin's noise (`bins_conditional`). Direction "add" by a
Laplace transform (`bins_laplace`). All are for a covariance above the Gram matrix
(`bins_kernel`): no confidence is needed. How far above an estimate the bound is, see
`benchmarks/accounting.py`.
"""

from __future__ import annotations

import functools
import math
from typing import Callable

import numpy as np

from tf_bandmf.accounting import (
    bins_chain,
    bins_conditional,
    bins_kernel,
    bins_laplace,
    bins_moments,
    gaussian,
)
from tf_bandmf.accounting.base import Accountant, meaningful
from tf_bandmf.accounting.bins_mixture import check_bins
from tf_bandmf.accounting.checks import check_delta, check_epsilon, check_positive
from tf_bandmf.accounting.guarantee import ZERO_OUT, Calibration, Guarantee
from tf_bandmf.accounting.root_finding import log, near_root

NAME = "balls in bins, moments and Laplace transforms without simulation"
QUICK = bins_chain.Grid(0.4, (0.006, 0.008, 0.03), 3_500)

_TOLERANCE = 1e-4
# Where the search for noise begins below that without amplification, and its last step;
# of their logarithms.
_START, _LAST_STEP = 0.5, 3e-4
# The largest squared ratio of norm to noise: beyond it, privacy means nothing.
_LARGEST_SQUARED_RATIO = 200.0
# Beyond it the chain of the bins is not followed: amplification hardly matters.
_LARGEST_CHAIN_EPSILON = 25.0
# Larger thresholds overflow; the bound there is that of the last one.
_LARGEST_EXPONENT = 700.0
# Steps of the search for noise by the chain, and how close to delta it ends: first on a
# grid that is quick, then on the one that decides.
_CHAIN_STEPS, _QUICK_PRECISION, _CHAIN_PRECISION = 8, 0.05, 0.01
# A quick chain that is above delta by this much, of its logarithm, may be below it on the
# grid that decides.
_WORTH_TRYING = 0.1


class CertainBins(Accountant):
    """(epsilon, delta) of balls in bins from above, for one Gram matrix of the bins.

    Formal guarantee: the true values do not exceed the returned ones, but for rounding
    errors of float64. Both directions of adjacency are covered (zero-out).

    Args:
      gram: G of `bins_mixture.gram_matrix`, shape [b, b], not negative.
      grid: resolution of the chain of the bins, which takes seconds for hundreds of them.

    Raises:
      ValueError: if there are too many bins.
    """

    claims = ((NAME, "bound", ZERO_OUT),)

    def __init__(self, gram: np.ndarray, grid: bins_chain.Grid | None = None) -> None:
        self._grid = grid
        check_bins(len(gram))
        self._gram = np.asarray(gram, np.float64)
        self._norm = math.sqrt(float(self._gram.diagonal().max()))
        self._row = bins_conditional.circulant_above(self._gram)
        self._kernels: dict[int, bins_kernel.Kernel] = {}
        self._moments = functools.lru_cache(maxsize=4)(self._log_moments)
        self._own = functools.lru_cache(maxsize=4)(self._moments_of_own_bin)
        self._profile = functools.lru_cache(maxsize=4)(self._chain)

    def delta(self, epsilon: float, noise_stddev: float) -> float:
        """Delta at epsilon >= 0 for noise of a standard deviation on the raw `C`, or more.

        Raises:
          ValueError: on invalid input.
        """
        check_positive("noise_stddev", noise_stddev)
        check_epsilon(epsilon)
        unamplified = gaussian.gaussian_delta(noise_stddev / self._norm, epsilon)
        if len(self._gram) == 1:
            return unamplified
        removed = self._quickly_removed(epsilon, noise_stddev)
        chain = self._profile(
            noise_stddev, min(epsilon, _LARGEST_CHAIN_EPSILON), self._grid
        )
        removed = min(removed, _at(chain, epsilon))
        if removed >= unamplified:
            return unamplified
        return min(unamplified, max(removed, self._added(epsilon, noise_stddev)))

    def epsilon(self, delta: float, noise_stddev: float) -> float:
        """Epsilon at delta, or more; 0 where delta is spent before.

        Raises:
          ValueError: on invalid input, or if epsilon would exceed 10**5.
        """
        check_delta(delta)
        check_positive("noise_stddev", noise_stddev)
        upper = gaussian.gaussian_epsilon(noise_stddev / self._norm, delta)
        if len(self._gram) == 1:
            return upper
        removed = _falling_root(
            lambda e: self._quickly_removed(e, noise_stddev), delta, 0.0, upper
        )
        chain = self._profile(
            noise_stddev, min(removed, _LARGEST_CHAIN_EPSILON), self._grid
        )
        removed = _falling_root(lambda e: _at(chain, e), delta, 0.0, removed)
        if removed >= upper or self._added(removed, noise_stddev) <= delta:
            return removed
        kernel = self._kernel(noise_stddev)
        found = max(removed, bins_laplace.epsilon_by_laplace(delta, kernel, upper))
        # The search for t at this epsilon may end beside the other one.
        step = _TOLERANCE * upper
        while found < upper and self._added(found, noise_stddev) > delta:
            found, step = min(found + step, upper), 2.0 * step
        return found

    def calibrate_noise_stddev(self, epsilon: float, delta: float) -> float:
        """The smallest noise that these bounds give the budget, checked by `delta`."""
        check_positive("epsilon", epsilon)
        check_delta(delta)
        largest = gaussian.calibrate_noise_stddev(epsilon, delta) * self._norm
        if len(self._gram) == 1:
            return largest

        def excess(log_noise: float) -> float:
            found = self._quickly_removed(epsilon, math.exp(log_noise))
            return log(found) - math.log(delta)

        most = math.log(largest)
        found = near_root(excess, most - _START, most, _LAST_STEP)
        noise = min(math.exp(found + 0.1 * _LAST_STEP), largest)
        noise = self._with_less_noise(epsilon, delta, noise)
        step = _TOLERANCE
        while noise < largest and self.delta(epsilon, noise) > delta:
            noise *= 1.0 + step
            step *= 2.0
        return min(noise, largest)

    def calibrate(self, epsilon: float, delta: float) -> Calibration:
        noise = self.calibrate_noise_stddev(epsilon, delta)
        guarantee = Guarantee(epsilon, delta, "bound", NAME, confidence=1.0)
        return Calibration(noise, guarantee, is_amplified=True)

    def guarantee(self, noise_stddev: float, delta: float) -> Guarantee:
        epsilon = meaningful(self.epsilon(delta, noise_stddev), noise_stddev, delta)
        return Guarantee(epsilon, delta, "bound", NAME, confidence=1.0)

    def confirms(self, noise_stddev: float, guarantee: Guarantee) -> bool:
        """By the bound itself; seconds for hundreds of bins."""
        epsilon, least = guarantee.epsilon, guarantee.delta * (1.0 + 1e-4)
        if self._quickly_removed(epsilon, noise_stddev) <= least and (
            self._added(epsilon, noise_stddev) <= least
        ):
            return True
        found = self.delta(epsilon, noise_stddev)
        return found <= guarantee.delta * (1.0 + 1e-4)

    def _kernel(self, noise_stddev: float) -> bins_kernel.Kernel:
        # Any kernel is valid at any noise: one for noise levels of the same size.
        size = round(4.0 * math.log(noise_stddev / self._norm))
        if size not in self._kernels:
            level = self._norm * math.exp(0.25 * size)
            self._kernels[size] = bins_kernel.above(self._gram, level)
        return self._kernels[size].scaled(noise_stddev)

    def _log_moments(self, noise_stddev: float) -> np.ndarray:
        kernel = self._kernel(noise_stddev)
        return bins_moments.log_moments(kernel, bins_moments.largest_order(kernel))

    def _moments_of_own_bin(self, noise_stddev: float) -> np.ndarray:
        return bins_conditional.log_moments(self._row, noise_stddev)

    def _chain(
        self,
        noise_stddev: float,
        largest_epsilon: float,
        grid: bins_chain.Grid | None,
    ) -> bins_chain.Profile | None:
        try:
            kernel = self._kernel(noise_stddev)
            return bins_chain.profile(kernel, largest_epsilon, grid)
        except ValueError:  # too little noise
            return None

    def _with_less_noise(self, epsilon: float, delta: float, noise: float) -> float:
        """The least noise that was found to be enough by the chain of the bins."""
        log_noise, slope = math.log(noise), -12.0
        enough = log_noise
        is_first = True
        for grid, precision in (
            (QUICK, _QUICK_PRECISION),
            (self._grid, _CHAIN_PRECISION),
        ):
            before: tuple[float, float] | None = None
            for _ in range(_CHAIN_STEPS):
                chain = self._profile(math.exp(log_noise), epsilon, grid)
                excess = log(_at(chain, epsilon)) - math.log(delta)
                if chain is None or (is_first and excess > _WORTH_TRYING):
                    return math.exp(enough)
                is_first = False
                if excess <= 0.0:
                    enough = min(enough, log_noise)
                if -precision <= excess <= 0.0:
                    break
                if before is not None and before[0] != log_noise:
                    slope = (excess - before[1]) / (log_noise - before[0])
                    slope = min(slope, -1.0)
                before = log_noise, excess
                move = -(excess + 0.5 * precision) / slope
                log_noise += min(max(move, -0.3), 0.3)
            if grid == self._grid:
                break
        return math.exp(enough)

    def _quickly_removed(self, epsilon: float, noise_stddev: float) -> float:
        if (self._norm / noise_stddev) ** 2 > _LARGEST_SQUARED_RATIO:
            # Nothing is claimed from the bins: exponents would overflow.
            return 1.0
        logs = self._moments(noise_stddev)
        return min(
            bins_moments.delta_from_moments(epsilon, logs),
            bins_conditional.delta_from_moments(epsilon, self._own(noise_stddev)),
        )

    def _added(self, epsilon: float, noise_stddev: float) -> float:
        return bins_laplace.delta_by_laplace(epsilon, self._kernel(noise_stddev))


def _at(chain: bins_chain.Profile | None, epsilon: float) -> float:
    """The delta by the chain of the bins, 1 where there is none."""
    if chain is None:
        return 1.0
    return float(chain.at(math.exp(min(epsilon, _LARGEST_EXPONENT))))


def _falling_root(
    function: Callable[[float], float], delta: float, lower: float, upper: float
) -> float:
    """Where a falling function reaches delta, rounded up to what was evaluated."""
    if function(lower) <= delta:
        return lower
    if function(upper) > delta:
        return upper
    while upper - lower > _TOLERANCE * upper:
        middle = 0.5 * (lower + upper)
        if function(middle) <= delta:
            upper = middle
        else:
            lower = middle
    return upper
