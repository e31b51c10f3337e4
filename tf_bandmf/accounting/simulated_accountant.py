"""What the accountants that simulate the privacy loss have in common."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Callable

import scipy.optimize

from tf_bandmf.accounting import gaussian
from tf_bandmf.accounting.base import Accountant, meaningful
from tf_bandmf.accounting.checks import (
    check_confidence,
    check_delta,
    check_epsilon,
    check_positive,
)
from tf_bandmf.accounting.guarantee import (
    UNAMPLIFIED,
    ZERO_OUT,
    Calibration,
    Guarantee,
)
from tf_bandmf.accounting.importance import Run
from tf_bandmf.accounting.monte_carlo import Bound, Estimate, MonteCarloValue
from tf_bandmf.accounting.root_finding import log, near_root
from tf_bandmf.accounting.simulator import (
    BOUND_SLACK,
    CHECK,
    MAIN,
    Proposal,
    Simulator,
    Stage,
    TooManyDraws,
)

# A calibrated or stated estimate is on the safe side by so many standard errors.
SAFETY = 2.0
# A stated estimate is checked with few draws: it may differ by so many standard errors,
# and by this factor.
_CHECK_ERRORS, CHECK_FACTOR = 5.0, 1.1
# Smaller values of delta are bounded by about this much.
_LEAST_BOUNDED = 1e-6
# The search for a rough noise, in its logarithm: the last step, and how far below the
# noise without amplification it begins. The last step of the search for a noise.
_ROUGH_STEP, _ROUGH_START, _PRECISION = 5e-3, 0.7, 1e-4
# A direction that is by so many standard errors below so large a part of the other one is
# left out of the search.
_ERRORS, _MINOR = 5.0, 0.5
# Checks of a noise by new draws; it grows by this much after the first.
_ATTEMPTS, _MORE_NOISE = 8, 1e-3


class SimulatedAccountant(Accountant):
    """(epsilon, delta) of one strategy, from draws of the privacy loss.

    Formal guarantee: with a `confidence`, a returned `Bound` is exceeded by the true
    value with probability at most `1 - confidence` over the simulation, in each call.
    Both directions of adjacency are covered (zero-out or add-or-remove: an example's
    contribution is replaced by zero, or the reverse). A bound that would take too many
    draws falls back to the Gaussian mechanism that the run is without amplification.

    Args:
      name: of the accountant, for guarantees.
      simulator: of the privacy loss.
      norm: the largest l2 norm of an example's contribution `C x`: without amplification
        the run is a Gaussian mechanism of this sensitivity.
      confidence: None for estimates, or 1 - beta, for example `1 - 1e-6`.
    """

    def __init__(
        self, name: str, simulator: Simulator, norm: float, confidence: float | None
    ) -> None:
        check_confidence(confidence)
        self._simulator, self._norm, self._confidence = simulator, norm, confidence
        self.claims = (
            (name, "estimate", ZERO_OUT),
            (name, "bound", ZERO_OUT),
            (f"{name.partition(',')[0]} {UNAMPLIFIED}", "bound", ZERO_OUT),
        )

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
        return self._delta_bound(
            epsilon, noise_stddev, 1.0 - self._confidence, aim, MAIN
        )

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
            return self._epsilon_bound(
                delta, noise_stddev, rough, upper, self._confidence
            )
        runs = self._simulator.runs(rough, noise_stddev)
        value = _solve(runs, delta, upper)
        run = max(runs, key=lambda run: run.estimate(value).value)
        slope = run.slope(value)
        error = run.estimate(value).standard_error / slope if slope > 0.0 else 0.0
        return Estimate(value, error, self._simulator.num_draws)

    def calibrate(self, epsilon: float, delta: float) -> Calibration:
        """The smallest noise for the budget, on the safe side.

        For an estimate: delta plus two standard errors is within the budget in the draws
        that the search used, and delta in independent ones. For a bound: delta is, at the
        confidence, by draws that the search did not use.

        Raises:
          ValueError: on invalid input.
          ArithmeticError: if the simulation overflows.
        """
        check_positive("epsilon", epsilon)
        check_delta(delta)
        largest = self._largest_noise(epsilon, delta)
        if self._confidence is None:
            noise = self._search(epsilon, delta, largest, SAFETY)
            noise = self._checked(epsilon, delta, noise, largest)
        else:
            # A bound takes BOUND_SLACK / (1 + BOUND_SLACK) of it, and some luck.
            aim = delta / (1.0 + 1.1 * BOUND_SLACK)
            noise = self._search(epsilon, aim, largest, 1.0)
            try:
                noise = self._bounded(epsilon, delta, noise, largest, self._confidence)
            except TooManyDraws as error:
                stated = self._without_amplification(epsilon, delta, error)
                return Calibration(largest, stated)
        return Calibration(noise, self._stated(epsilon, delta), is_amplified=True)

    def guarantee(self, noise_stddev: float, delta: float) -> Guarantee:
        try:
            found = self.epsilon(delta, noise_stddev)
        except TooManyDraws as error:
            epsilon = gaussian.gaussian_epsilon(noise_stddev / self._norm, delta)
            epsilon = meaningful(epsilon, noise_stddev, delta)
            return self._without_amplification(epsilon, delta, error)
        epsilon = meaningful(found.value, noise_stddev, delta)
        if isinstance(found, Estimate):
            epsilon += SAFETY * found.standard_error
        return self._stated(epsilon, delta)

    def confirms(self, noise_stddev: float, guarantee: Guarantee) -> bool:
        if guarantee.is_unamplified:
            noise = noise_stddev / self._norm
            found = gaussian.gaussian_delta(noise, guarantee.epsilon)
            return found <= guarantee.delta * (1.0 + 1e-6)
        rough = self.rough_delta(guarantee.epsilon, noise_stddev)
        least = rough.value - _CHECK_ERRORS * rough.standard_error
        return least <= guarantee.delta * CHECK_FACTOR

    def _largest_noise(self, epsilon: float, delta: float) -> float:
        """Noise that is enough for certain: without amplification."""
        return gaussian.calibrate_noise_stddev(epsilon, delta) * self._norm

    def proposals(self, epsilon: float, noise_stddev: float) -> list[Proposal]:
        """What to draw from where delta at epsilon is wanted, for both directions."""
        propose = self._simulator.propose
        return [propose(add, epsilon, noise_stddev) for add in (False, True)]

    def noise_by(
        self,
        proposals: Sequence[Proposal],
        epsilon: float,
        delta: float,
        near: float,
        safety: float = 0.0,
    ) -> float:
        """Noise at which the estimate plus so many standard errors is delta.

        By equal draws at every noise level, and for every accountant with as many bins.

        Args:
          proposals: of an accountant like this one.
          epsilon: > 0.
          delta: in (0, 1).
          near: where the search begins.
          safety: in standard errors.
        """
        directions = [False, True]

        def excess(log_noise: float) -> float:
            found = [
                self._simulator.simulate(
                    math.exp(log_noise), proposals[add], add, MAIN
                ).estimate(epsilon)
                for add in directions
            ]
            larger = max(found, key=lambda estimate: estimate.value)
            if len(found) > 1:
                # Far below the other one near this noise; what was found is checked.
                directions[:] = [
                    add
                    for add, estimate in zip(directions, found)
                    if estimate.value + _ERRORS * estimate.standard_error
                    >= _MINOR * larger.value
                ]
            return log(larger.value + safety * larger.standard_error) - log(delta)

        largest = math.log(self._largest_noise(epsilon, delta))
        return math.exp(near_root(excess, math.log(near), largest, _PRECISION))

    def _search(
        self, epsilon: float, delta: float, largest: float, safety: float
    ) -> float:
        """Noise at which the estimate plus standard errors equals delta, rounded up."""
        noise = min(self.rough_noise_stddev(epsilon, delta), largest)
        proposals = self.proposals(epsilon, noise)
        found = self.noise_by(proposals, epsilon, delta, noise, safety)
        return min(found * math.exp(_PRECISION), largest)

    def _checked(
        self, epsilon: float, delta: float, noise: float, largest: float
    ) -> float:
        """The noise, or so much more that draws that the search did not use confirm it."""
        for attempt in range(_ATTEMPTS):
            runs = self._simulator.runs(epsilon, noise, (CHECK, attempt))
            if noise >= largest or worst(runs, epsilon).value <= delta:
                return noise
            noise = min(noise * (1.0 + _MORE_NOISE * 2**attempt), largest)
        return largest

    def _bounded(
        self,
        epsilon: float,
        delta: float,
        noise: float,
        largest: float,
        confidence: float,
    ) -> float:
        """The noise, or so much more that bounds by new draws confirm it.

        Raises:
          TooManyDraws: if that takes too many draws.
        """
        for attempt in range(_ATTEMPTS):
            # The first attempt may fail with half of beta, the next with a quarter, ...
            part = (1.0 - confidence) * 0.5 ** (attempt + 1)
            stage = CHECK, attempt
            if self._delta_bound(epsilon, noise, part, delta, stage).value <= delta:
                return noise
            noise *= 1.0 + 2.0 * _MORE_NOISE * 2**attempt
            if noise >= largest:
                break
        # Certain: without amplification.
        return largest

    def _delta_bound(
        self, epsilon: float, noise: float, beta: float, aim: float, stage: Stage
    ) -> Bound:
        """Delta at confidence 1 - beta, both directions together."""
        runs = self._simulator.bound_runs(epsilon, noise, beta, aim, stage)
        found = max(
            run.bound(epsilon, largest, part, 1e-12) for run, largest, part in runs
        )
        return Bound(min(found, 1.0), 1.0 - beta, _count(runs))

    def _epsilon_bound(
        self, delta: float, noise: float, rough: float, upper: float, confidence: float
    ) -> Bound:
        """Epsilon at delta and a confidence, near an estimate, at most `upper`."""
        # The largest value is valid from here on, whatever the main draws say.
        least = 0.97 * rough
        runs = self._simulator.bound_runs(least, noise, 1.0 - confidence, delta, MAIN)

        def bound(epsilon: float) -> float:
            return max(
                run.bound(epsilon, largest, part, 1e-4 * delta)
                for run, largest, part in runs
            )

        value = _falling_root(bound, delta, upper, least)
        if least < value < upper:
            value *= 1.0 + 1e-6
        return Bound(min(value, upper), confidence, _count(runs))

    def _stated(self, epsilon: float, delta: float) -> Guarantee:
        name = self.claims[0][0]
        kind = "estimate" if self._confidence is None else "bound"
        return Guarantee(epsilon, delta, kind, name, confidence=self._confidence)

    def _without_amplification(
        self, epsilon: float, delta: float, error: TooManyDraws
    ) -> Guarantee:
        warnings.warn(f"{error} No amplification is claimed instead.", stacklevel=4)
        name, kind, _ = self.claims[-1]
        return Guarantee(epsilon, delta, kind, name, confidence=self._confidence)


def worst(runs: Sequence[Run], epsilon: float) -> Estimate:
    """Delta at epsilon, of the worse direction."""
    return max((run.estimate(epsilon) for run in runs), key=lambda found: found.value)


def _solve(runs: Sequence[Run], delta: float, upper: float) -> float:
    """Where the estimate of delta falls to `delta`, within [0, upper]."""
    return _falling_root(lambda e: worst(runs, e).value, delta, upper)


def _falling_root(
    function: Callable[[float], float], delta: float, upper: float, lower: float = 0.0
) -> float:
    """Where a falling function of epsilon equals delta, within [lower, upper]."""

    def excess(epsilon: float) -> float:
        return log(function(epsilon)) - math.log(delta)

    if excess(lower) <= 0.0:
        return lower
    if excess(upper) >= 0.0:
        return upper
    return float(scipy.optimize.brentq(excess, lower, upper, xtol=1e-9, rtol=1e-8))


def _count(runs: Sequence[tuple[Run, float, float]]) -> int:
    """Draws of all runs."""
    return sum(run.losses.size for run, _, _ in runs)
