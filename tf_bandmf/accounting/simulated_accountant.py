"""What the accountants that simulate the privacy loss have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Generic, TypeVar

from tf_bandmf.accounting import gaussian
from tf_bandmf.accounting.base import Accountant, meaningful
from tf_bandmf.accounting.checks import check_delta, check_epsilon, check_positive
from tf_bandmf.accounting.guarantee import Guarantee
from tf_bandmf.accounting.importance import Run
from tf_bandmf.accounting.monte_carlo import Bound, Estimate, MonteCarloValue
from tf_bandmf.accounting.root_finding import log, near_root
from tf_bandmf.accounting.simulated_bounds import (
    MAIN,
    Simulator,
    delta_bound,
    epsilon_bound,
    falling_root,
)

# A calibrated or stated estimate is on the safe side by so many standard errors.
SAFETY = 2.0
# A stated estimate is checked with few draws: it may differ by so many standard errors,
# and by this factor.
_CHECK_ERRORS, CHECK_FACTOR = 5.0, 1.1
# Smaller values of delta are bounded by about this much.
_LEAST_BOUNDED = 1e-6
# The search for a rough noise, in its logarithm: the last step, and how far below the
# noise without amplification it begins.
_ROUGH_STEP, _ROUGH_START = 5e-3, 0.7

SimulatorT = TypeVar("SimulatorT", bound=Simulator)


class SimulatedAccountant(Accountant, Generic[SimulatorT]):
    """(epsilon, delta) of one strategy, from draws of the privacy loss.

    Formal guarantee: with a `confidence`, a returned `Bound` is exceeded by the true
    value with probability at most `1 - confidence` over the simulation, in each call.
    Both directions of adjacency are covered (zero-out or add-or-remove: an example's
    contribution is replaced by zero, or the reverse).

    Args:
      simulator: of the privacy loss.
      norm: the largest l2 norm of an example's contribution `C x`: without amplification
        the run is a Gaussian mechanism of this sensitivity.
      confidence: None for estimates, or 1 - beta, for example `1 - 1e-6`.
    """

    def __init__(
        self, simulator: SimulatorT, norm: float, confidence: float | None
    ) -> None:
        self._simulator, self._norm, self._confidence = simulator, norm, confidence

    def delta(self, epsilon: float, noise_stddev: float) -> MonteCarloValue:
        """Delta at epsilon >= 0, of the worse direction.

        Raises:
          ValueError: on invalid input, or if a bound would take too many draws.
        """
        check_epsilon(epsilon)
        check_positive("noise_stddev", noise_stddev)
        if self._confidence is None:
            return worst(self._simulator.runs(epsilon, noise_stddev), epsilon)
        aim = max(self.rough_delta(epsilon, noise_stddev).value, _LEAST_BOUNDED)
        beta = 1.0 - self._confidence
        return delta_bound(self._simulator, epsilon, noise_stddev, beta, aim, MAIN)

    def rough_delta(self, epsilon: float, noise_stddev: float) -> Estimate:
        """A quick estimate of delta at epsilon, from few draws."""
        return worst(self._simulator.rough_runs(noise_stddev), epsilon)

    def rough_noise_stddev(
        self, epsilon: float, delta: float, near: float | None = None
    ) -> float:
        """Where `rough_delta` is delta; equal draws at every noise level.

        Raises:
          ValueError: on invalid input.
          ArithmeticError: if the simulation overflows, or there is no such noise.
        """
        check_positive("epsilon", epsilon)
        check_delta(delta)
        largest = math.log(self._largest_noise(epsilon, delta))

        def excess(log_noise: float) -> float:
            found = self.rough_delta(epsilon, math.exp(log_noise))
            return log(found.value) - math.log(delta)

        start = largest - _ROUGH_START if near is None else math.log(near)
        return math.exp(near_root(excess, start, largest, _ROUGH_STEP))

    def epsilon(self, delta: float, noise_stddev: float) -> MonteCarloValue:
        """Epsilon at delta; 0 where delta is spent before.

        Raises:
          ValueError: on invalid input; if epsilon would exceed that of the run without
            amplification by rounding, or 10**5; or if a bound would take too many draws.
        """
        check_delta(delta)
        check_positive("noise_stddev", noise_stddev)
        # Without amplification epsilon is never smaller: the pair is a mixture.
        upper = gaussian.gaussian_epsilon(noise_stddev / self._norm, delta)
        rough = _solve(self._simulator.rough_runs(noise_stddev), delta, upper)
        if self._confidence is not None:
            return epsilon_bound(
                self._simulator, delta, noise_stddev, rough, upper, self._confidence
            )
        runs = self._simulator.runs(rough, noise_stddev)
        value = _solve(runs, delta, upper)
        run = max(runs, key=lambda run: run.estimate(value).value)
        slope = run.slope(value)
        error = run.estimate(value).standard_error / slope if slope > 0.0 else 0.0
        return Estimate(value, error, self._simulator.num_draws)

    def guarantee(self, noise_stddev: float, delta: float) -> Guarantee:
        found = self.epsilon(delta, noise_stddev)
        epsilon = meaningful(found.value, noise_stddev, delta)
        if isinstance(found, Estimate):
            epsilon += SAFETY * found.standard_error
        return self._stated(epsilon, delta, found)

    def confirms(self, noise_stddev: float, guarantee: Guarantee) -> bool:
        found = self.rough_delta(guarantee.epsilon, noise_stddev)
        least = found.value - _CHECK_ERRORS * found.standard_error
        return least <= guarantee.delta * CHECK_FACTOR

    def _largest_noise(self, epsilon: float, delta: float) -> float:
        """Noise that is enough for certain: without amplification."""
        return gaussian.calibrate_noise_stddev(epsilon, delta) * self._norm

    def _stated(
        self, epsilon: float, delta: float, found: MonteCarloValue
    ) -> Guarantee:
        confidence = found.confidence if isinstance(found, Bound) else None
        name = self.claims[0][0]
        return Guarantee(epsilon, delta, found.kind, name, confidence=confidence)


def worst(runs: Sequence[Run], epsilon: float) -> Estimate:
    """Delta at epsilon, of the worse direction."""
    return max((run.estimate(epsilon) for run in runs), key=lambda found: found.value)


def _solve(runs: Sequence[Run], delta: float, upper: float) -> float:
    """Where the estimate of delta falls to `delta`, within [0, upper]."""
    return falling_root(lambda e: worst(runs, e).value, delta, upper)
